import { type Api, type ApiResponse, type Credentials, FROM_LOOPBACK } from '../support/api.ts';
import { codeOf, type Outcome, send } from './client.ts';
import { EventFollower } from './event-follower.ts';
import type { ModelActor, ModelBranch, ModelProject } from './model.ts';
import type { Concurrent } from './operation-handler.ts';
import type { Operation } from './schedule.ts';
import type { Sessions } from './sessions.ts';

/** Codes that are permitted when the resource of a request is deleted or moved concurrently. */
const OVERTAKEN_CODES = [
  'NOT_FOUND',
  'PROJECT_NOT_ACTIVE',
  'BRANCH_NOT_ACTIVE',
  'SOURCE_NOT_ACTIVE',
  'UNAUTHENTICATED',
];

/**
 * Codes that are permitted while the project of a request moves to another host: its branches are not made, deleted or reset
 * then, and some can only be read.
 */
const MOVING_CODES = ['PROJECT_MOVING', 'STATEMENT_REFUSED'];

/** A database host, as its operator knows it. */
export interface RunHost {
  id: string;
  ports: { direct: number; pooled: number };
}

export interface RunContext {
  /** The operator of the platform. */
  operator: Api;
  hosts: readonly RunHost[];
  /** Ends the retries of every client. */
  signal: AbortSignal;
  newApi: (email: string, tenant: string) => Promise<Api>;
  /** Records a violation. */
  report: (violation: string) => void;
}

/** Runs one user: sends its requests and checks what the service promised it. */
export class ActorRun {
  readonly model: ModelActor;
  readonly context: RunContext;
  readonly #opened: Sessions[] = [];
  readonly #watched: { what: string; sessions: Sessions }[] = [];
  readonly #watches: Promise<void>[] = [];
  readonly #followers = new Map<string, EventFollower>();

  constructor(model: ModelActor, context: RunContext) {
    this.model = model;
    this.context = context;
  }

  report(violation: string): void {
    this.context.report(`${this.model.name}: ${violation}`);
  }

  /** Sends the request from as many concurrent clients as the operation specifies. */
  send<B>(operation: Operation, request: () => Promise<ApiResponse<B>>): Promise<Outcome<B>[]> {
    const { persists, copies } = operation;
    const { signal } = this.context;
    return Promise.all(Array.from({ length: copies }, () => send(request, { persists, signal })));
  }

  /** Sends the request from one client. */
  async sendOnce<B>(operation: Operation, request: () => Promise<ApiResponse<B>>): Promise<Outcome<B>> {
    const [outcome] = await this.send({ ...operation, copies: 1 }, request);
    if (!outcome) throw new Error('nothing was sent');
    return outcome;
  }

  /** @returns the responses with this status; reports the others unless their codes are permitted */
  responsesWithStatus<B>(
    operation: Operation,
    outcomes: Outcome<B>[],
    status: number | readonly number[],
    { deleted, moved, moving, permitted = [] }: Concurrent & { permitted?: string[] },
  ): ApiResponse<B>[] {
    const allowed = [
      ...permitted,
      ...(deleted || moved ? OVERTAKEN_CODES : []),
      ...(moving ? MOVING_CODES : []),
    ];
    const wanted = [status].flat();
    const matching: ApiResponse<B>[] = [];
    for (const { response } of outcomes) {
      if (!response) {
        if (operation.persists) this.report(`${operation.kind}: no response in time`);
      } else if (wanted.includes(response.status)) {
        matching.push(response);
      } else if (!allowed.includes(codeOf(response))) {
        this.report(`${operation.kind}: unexpected response ${response.status} ${codeOf(response)}`);
      }
    }
    return matching;
  }

  /** Reads the credentials of a branch, with retries; null when they are unavailable. */
  async credentials(project: ModelProject, branch: ModelBranch): Promise<Credentials | null> {
    if (branch.credentials) return branch.credentials;
    const path = `/api/v1/projects/${project.id}/branches/${branch.id}/credentials`;
    const { response, tries } = await send(
      () => this.model.api.call<Credentials>('GET', path, { headers: FROM_LOOPBACK }),
      { persists: true, signal: this.context.signal },
    );
    branch.views.most += tries;
    if (response?.status !== 200) return null;
    branch.views.least += 1;
    branch.credentials = response.body;
    return response.body;
  }

  /**
   * @param when `now`: the response promised that they have ended; `at_rest`: they end before the service has
   *   converged; `never`: unknown
   */
  expectEnd(what: string, sessions: Sessions, when: 'now' | 'at_rest' | 'never'): void {
    this.#opened.push(sessions);
    if (when !== 'never') this.#watched.push({ what, sessions });
    if (when === 'now') this.#watches.push(this.#checkEnded(what, sessions));
  }

  /** Reads the events of a project until `stopFollowing`. */
  follow(projectId: string): void {
    this.#followers.set(projectId, new EventFollower(projectId, () => this.model.api));
  }

  followerOf(projectId: string): EventFollower | undefined {
    return this.#followers.get(projectId);
  }

  stopFollowing(): void {
    for (const follower of this.#followers.values()) follower.stop();
  }

  /** Must be called after the service has converged. */
  async checkSessions(): Promise<void> {
    await Promise.all(this.#watches);
    await Promise.all(this.#watched.map(({ what, sessions }) => this.#checkEnded(what, sessions)));
    await Promise.all(this.#opened.map((sessions) => sessions.close()));
  }

  async #checkEnded(what: string, sessions: Sessions): Promise<void> {
    for (const port of await sessions.survivors())
      this.report(`${what}: a session on the ${port} port is still open 15 s later`);
  }
}
