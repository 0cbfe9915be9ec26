import { app } from '../../../edge/app.ts';
import { ProjectCoordinator as RealCoordinator } from '../../../edge/coordinator/project-coordinator.ts';
import type { Env } from '../../../edge/env.ts';
import { HostLink as RealHostLink } from '../../../edge/host-link/host-link.ts';
import { failed } from '../../../edge/host-link/pending-calls.ts';
import type { CallOutcome } from '../../../edge/hosts/host-client.ts';
import { RateLimiter as RealRateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';
import { Challenges as RealChallenges } from '../../../edge/sign-in/challenges.ts';
import type { EndpointHealth } from '../../../edge/webhooks/delivery.ts';
import { WebhookSender as RealWebhookSender } from '../../../edge/webhooks/webhook-sender.ts';
import type { HostFailure } from '../../../shared/protocol/host-failures.ts';
import type { Method, MethodResult, Params } from '../../../shared/protocol/operations.ts';
import { fail } from '../../../shared/result.ts';
import { attribute, CATCH_UP_HEADER, TALLY_HEADER, type Tally, Trips } from './trips.ts';

/** The whole gateway with slow bindings, and a host that has done everything as soon as it is asked. */

let known: Trips | undefined;

const tripsOf = (env: Env): Trips => {
  known ??= new Trips(env, env.DELAY_MS as number);
  return known;
};

const CLONED = {
  created: true,
  strategy: 'reflink',
  clone_ms: 1,
  paused_ms: 0,
  source_bytes: 8_388_608,
  created_by: 'clone',
} as const;

const REHEARSAL = {
  state: 'running',
  started_at: '2026-01-01T00:00:00.000Z',
  finished_at: null,
  limits: { lock_ms: 1000, table_bytes: 1 },
  report: null,
} as const;

const TRIAL: MethodResult<'try.run'>['report'] = {
  outcome: 'succeeded',
  error: null,
  results: [],
  rows: { tables: [], has_more: false, compared: 0, not_compared: [] },
  schema: { changes: [], statements: [], not_modelled: [], schema_proven: true, unproven_reason: null },
  tables: [],
  dangers: [],
  limits: REHEARSAL.limits,
  unwatched_tables: 0,
  problems: [],
  has_more: false,
  statements_ms: 1,
  total_ms: 2,
};

/** Sizes of all branches that were made. */
const PREPARED = new Map<string, number>();

/** What the host says of the exchange of a reset that is undone. */
let isSwapped = false;

const FOLLOWED: MethodResult<'follow.status'> = {
  state: 'following',
  tables: [{ schema: 'public', table: 'book', state: 'following', rows: 3, percent: 100 }],
  lag_bytes: 0,
  lag_seconds: 0.5,
  slot_bytes: 10,
  keep_bytes: 1000,
  problem: null,
};

const unsuitable = (message: string) => ({
  ...({
    problem: 'tables',
    severity: 'error',
    path: 'tables',
    message,
    object: null,
    statement: null,
  } as const),
});

const ANSWERS: { [M in Method]?: (params: Params<M>) => MethodResult<M> } = {
  'branch.prepare': (params) => {
    for (const { branch_id } of params.branches) PREPARED.set(branch_id, 0);
    return {};
  },
  'branch.clone': () => CLONED,
  'branch.finalize': () => ({}),
  'branch.prove': () => ({ login_ms: 1 }),
  'branch.keep': () => ({ kept: true, size_bytes: 8_388_608 }),
  'branch.rename': () => ({ renamed: true }),
  'branch.drop': () => ({ dropped: true }),
  'masking.inspect': ({ rules }) => ({
    problems: rules.flatMap(({ table, column }) =>
      table === 'uncovered' ? [{ table: 'public.uncovered', column, reason: 'its name says e-mail' }] : [],
    ),
    suggestions: [],
  }),
  'snapshot.mask': ({ masking }) =>
    masking?.rules.some(({ table }) => table === 'gone')
      ? {
          masked: false,
          unchanged: false,
          size_bytes: 0,
          problems: [{ table: 'public.gone', column: null, reason: 'it is gone' }],
        }
      : { masked: true, unchanged: false, size_bytes: 8_388_608, problems: [] },
  'spares.read': () => ({ wanted: 0, ready: 0, waiting_for: null }),
  'snapshot.take': () => ({ taken: true, size_bytes: 8_388_608, independent: false }),
  'snapshot.drop': () => ({ dropped: true }),
  'reset.clone': () => CLONED,
  'reset.swap': () => ({ kept: true, size_bytes: 8_388_608 }),
  'reset.cancel': () => ({ dropped: true, left: isSwapped ? { kept: true, size_bytes: 8_388_608 } : null }),
  'project.size': ({ project_id }) => ({ project_id, sizes: Object.fromEntries(PREPARED) }),
  'access.apply': ({ access: { revision } }) => ({ revision }),
  'host.extensions': () => ({ extensions: [] }),
  'branch.sessions': () => ({ direct: 0 }),
  'table.list': () => ({ tables: [], has_more: false }),
  'table.describe': ({ schema, table: name }) => ({
    schema,
    name,
    kind: 'table',
    columns: [],
    primary_key: [],
    estimated_rows: 0,
    keys: [],
    foreign_keys: [],
    indexes: [],
    constraints: [],
    comment: null,
  }),
  'rehearsal.start': () => REHEARSAL,
  'rehearsal.read': () => ({ rehearsal: REHEARSAL }),
  'rehearsal.finish': () => ({ rehearsal: REHEARSAL }),
  'change.plan': ({ sql }) => ({
    steps: [{ statements: [{ sql, findings: [] }], alone: false, sets: false, leaves: 'Nothing is left.' }],
    schema: '0'.repeat(64),
    main_changes: null,
  }),
  'change.schema': () => ({ schema: '0'.repeat(64) }),
  'branch.diff': () => ({ complete: true, method: null, rows: null, schema: null }),
  'try.run': () => ({ report: TRIAL }),
  'try.read': () => ({ known: true, report: TRIAL }),
  'row.diff': () => ({
    method: 'full',
    key: ['id'],
    columns_before: [],
    columns_after: [],
    rows: [],
    next: null,
  }),
  'transfer.probe': ({ tables }) => ({
    source: {
      host: 'db.example.com',
      port: 5432,
      database: 'shop',
      version: '17.2',
      tls: 'certificate',
      tables: [],
      has_more: false,
      total_bytes: 0,
      free_slots: 4,
      wal_keep_bytes: null,
    },
    findings: tables?.includes('nope') ? [unsuitable('The source has no table nope.')] : [],
  }),
  'transfer.copy': ({ tables }) =>
    tables?.includes('refused')
      ? { copied: null, findings: [unsuitable('PostgreSQL refuses the rows.')] }
      : {
          copied: {
            tables: [{ schema: 'public', table: 'book', rows: 3, compared: 3 }],
            has_more: false,
            rows: 3,
            size_bytes: 8_388_608,
          },
          findings: [],
        },
  'diff.cancel': () => ({ stopped: true }),
  'transfer.cancel': () => ({ stopped: true }),
  'follow.start': () => ({}),
  'follow.status': () => FOLLOWED,
  'follow.resume': () => FOLLOWED,
  'project.drop': () => ({ dropped_databases: 1 }),
  'move.admit': () => ({ admitted_at: '2026-01-01 00:00:00+00', can_remove: true }),
  'move.close': () => ({ admitted_at: '2026-01-01 00:00:00+00', written_lsn: '0/0', changed: [] }),
  'move.release': () => ({ released: true }),
  'move.compare': () => ({ compared: { tables: 1, rows: 3 }, findings: [] }),
  'follow.cutover': ({ writes_refused, is_compared }) =>
    writes_refused && !is_compared
      ? { cut_over: null, findings: [unsuitable('Both sides have other rows.')] }
      : {
          cut_over: {
            tables: [{ schema: 'public', table: 'book', rows: 4, compared: 4 }],
            has_more: false,
            rows: 4,
            sequences: 1,
            refused_ms: 4,
            dropped_at_source: true,
            message: null,
          },
          findings: [],
        },
  'follow.cancel_cutover': () => ({ cancelled: true }),
  'follow.stop': () => ({ dropped_at_source: false, message: 'The slot is left at the source.' }),
  'row.list': () => ({ columns: [], rows: [], has_more: false, estimated_rows: 0 }),
};

/** The calls that are lost next. Their objects lose it with their memory. */
const losses = new Set<string>();

function loseDuring(call: string, ctx: DurableObjectState): void {
  if (losses.delete(call)) ctx.abort('lost by the test');
}

export class HostLink extends RealHostLink {
  #linked = true;
  #answers = true;
  readonly #planted = new Map<Method, CallOutcome<Method>>();
  readonly #calls = new Map<Method, number>();

  /** @param answers left out: as long as it is linked */
  async setLinked(linked: boolean, answers = linked): Promise<void> {
    this.#linked = linked;
    this.#answers = answers;
  }

  async setSwapped(swapped: boolean): Promise<void> {
    isSwapped = swapped;
  }

  /** Makes every call of the method fail. @param failure null: it succeeds again */
  async plantFailure(method: Method, failure: HostFailure | null): Promise<void> {
    if (failure) this.#planted.set(method, fail(failure));
    else this.#planted.delete(method);
  }

  /** Gives every call of the method this answer, until `plantFailure` with null. */
  async plantAnswer<M extends Method>(method: M, value: MethodResult<M>): Promise<void> {
    this.#planted.set(method, { ok: true, value });
  }

  /** Every call succeeds, and none is counted so far. */
  async forgetCalls(): Promise<void> {
    this.#planted.clear();
    this.#calls.clear();
  }

  /** How many calls of the method this object has received. */
  async countCalls(method: Method): Promise<number> {
    return this.#calls.get(method) ?? 0;
  }

  override async linked(): Promise<boolean> {
    loseDuring('linked', this.ctx);
    return this.#linked;
  }

  override async call(method: Method, params: Params<Method>): Promise<CallOutcome<Method>> {
    this.#calls.set(method, (this.#calls.get(method) ?? 0) + 1);
    if (!this.#answers) return failed('HOST_UNAVAILABLE', 'the host of the test does not answer');
    const planted = this.#planted.get(method);
    if (planted) return planted;
    const answer = ANSWERS[method] as ((given: Params<Method>) => MethodResult<Method>) | undefined;
    if (!answer) throw new Error(`the host of the test does not know ${method}`);
    return { ok: true, value: answer(params) };
  }
}

export class ProjectCoordinator extends RealCoordinator {
  constructor(state: DurableObjectState, env: Env) {
    super(state, tripsOf(env).env);
  }

  /** Loses the object during the next such call, after the call has taken effect. */
  async loseNext(call: 'monitor' | 'linked' | 'addRule' | 'createBranches' | 'deleteBranch'): Promise<void> {
    losses.add(call);
  }

  override get monitor() {
    loseDuring('monitor', this.ctx);
    return super.monitor;
  }

  override async addRule(...args: Parameters<RealCoordinator['addRule']>) {
    const added = await super.addRule(...args);
    loseDuring('addRule', this.ctx);
    return added;
  }

  override async createBranches(...args: Parameters<RealCoordinator['createBranches']>) {
    const created = await super.createBranches(...args);
    loseDuring('createBranches', this.ctx);
    return created;
  }

  override async deleteBranch(...args: Parameters<RealCoordinator['deleteBranch']>) {
    const deleted = await super.deleteBranch(...args);
    loseDuring('deleteBranch', this.ctx);
    return deleted;
  }
}

export class RateLimiter extends RealRateLimiter {
  constructor(state: DurableObjectState, env: Env) {
    super(state, tripsOf(env).env);
  }
}

export class Challenges extends RealChallenges {
  constructor(state: DurableObjectState, env: Env) {
    super(state, tripsOf(env).env);
  }
}

export class WebhookSender extends RealWebhookSender {
  constructor(state: DurableObjectState, env: Env) {
    super(state, tripsOf(env).env);
  }

  /** Makes everything older, and attempts what waits. */
  async age(milliseconds: number): Promise<void> {
    const { kv, sql } = this.ctx.storage;
    const health = kv.get<EndpointHealth>('health');
    if (health?.failingSince != null)
      kv.put('health', { ...health, failingSince: health.failingSince - milliseconds, pausedUntil: 0 });
    sql.exec(
      "update deliveries set created_at = created_at - ?, next_attempt_at = 0 where status = 'pending'",
      milliseconds,
    );
    await this.alarm();
  }
}

for (const { prototype } of [HostLink, ProjectCoordinator, RateLimiter, Challenges, WebhookSender])
  attribute(prototype, () => known?.tally() ?? { sequential: 0, trips: [] });

export default {
  async fetch(request, env, context) {
    const trips = tripsOf(env);
    if (request.headers.has(CATCH_UP_HEADER)) await trips.replica?.catchUp(0);
    const response = await trips.request(async () => app.fetch(request, trips.env, context));
    const answer = new Response(response.body, response);
    answer.headers.set(TALLY_HEADER, JSON.stringify(trips.tally() satisfies Tally));
    return answer;
  },
} satisfies ExportedHandler<Env>;
