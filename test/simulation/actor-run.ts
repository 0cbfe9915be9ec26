import { type Api, type ApiResponse, type Credentials, FROM_LOOPBACK } from '../support/api.ts';
import { codeOf, type Outcome, send } from './client.ts';
import type { ModelActor, ModelBranch, ModelProject } from './model.ts';
import type { Concurrent } from './operation-handler.ts';
import type { Operation } from './schedule.ts';
import type { Sessions } from './sessions.ts';

/** Answers that are lawful when what the request was about is deleted or moved away beside it. */
const OVERTAKEN = [
  'NOT_FOUND',
  'PROJECT_NOT_ACTIVE',
  'BRANCH_NOT_ACTIVE',
  'SOURCE_NOT_ACTIVE',
  'UNAUTHENTICATED',
];

export interface RunContext {
  /** Ends the patience of every client. */
  signal: AbortSignal;
  newApi: (email: string, tenant: string) => Promise<Api>;
  /** Takes down what must not be. */
  report: (violation: string) => void;
}

/** One user at work: how it sends, and what it holds against the service. */
export class ActorRun {
  readonly model: ModelActor;
  readonly context: RunContext;
  readonly #opened: Sessions[] = [];
  readonly #watched: { what: string; sessions: Sessions }[] = [];
  readonly #watches: Promise<void>[] = [];

  constructor(model: ModelActor, context: RunContext) {
    this.model = model;
    this.context = context;
  }

  report(violation: string): void {
    this.context.report(`${this.model.name}: ${violation}`);
  }

  /** Sends by as many clients at once as the operation says. */
  send<B>(operation: Operation, request: () => Promise<ApiResponse<B>>): Promise<Outcome<B>[]> {
    const { persists, copies } = operation;
    const { signal } = this.context;
    return Promise.all(Array.from({ length: copies }, () => send(request, { persists, signal })));
  }

  /** The same, by one. */
  async sendOnce<B>(operation: Operation, request: () => Promise<ApiResponse<B>>): Promise<Outcome<B>> {
    const [outcome] = await this.send({ ...operation, copies: 1 }, request);
    if (!outcome) throw new Error('nothing was sent');
    return outcome;
  }

  /** The answers with this status, of those that decide; all others have to be lawful. */
  responsesWithStatus<B>(
    operation: Operation,
    outcomes: Outcome<B>[],
    status: number | readonly number[],
    { deleted, moved, lawful = [] }: Concurrent & { lawful?: string[] },
  ): ApiResponse<B>[] {
    const allowed = [...lawful, ...(deleted || moved ? OVERTAKEN : [])];
    const wanted = [status].flat();
    const good: ApiResponse<B>[] = [];
    for (const { response } of outcomes) {
      if (!response) {
        if (operation.persists) this.report(`${operation.kind}: no answer in time`);
      } else if (wanted.includes(response.status)) {
        good.push(response);
      } else if (!allowed.includes(codeOf(response))) {
        this.report(`${operation.kind}: unexpected answer ${response.status} ${codeOf(response)}`);
      }
    }
    return good;
  }

  /** Credentials of a branch, asked for until there is an answer; null when it is not to be had. */
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

  /** @param when the service has said that they have ended, or they have when all is at rest, or nobody knows */
  expectEnd(what: string, sessions: Sessions, when: 'now' | 'at_rest' | 'never'): void {
    this.#opened.push(sessions);
    if (when !== 'never') this.#watched.push({ what, sessions });
    if (when === 'now') this.#watches.push(this.#judge(what, sessions));
  }

  /** To be called when everything is at rest. */
  async checkSessions(): Promise<void> {
    await Promise.all(this.#watches);
    await Promise.all(this.#watched.map(({ what, sessions }) => this.#judge(what, sessions)));
    await Promise.all(this.#opened.map((sessions) => sessions.close()));
  }

  async #judge(what: string, sessions: Sessions): Promise<void> {
    for (const port of await sessions.survivors())
      this.report(`${what}: a session on the ${port} port is alive 5 s later`);
  }
}
