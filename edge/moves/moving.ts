import { eq } from 'drizzle-orm';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { moverLogin } from '../../shared/protocol/transfer-operations.ts';
import type { AccessRows } from '../access/send-access.ts';
import { scramVerifier } from '../crypto/scram.ts';
import { unseal } from '../crypto/seal.ts';
import type { MovingBranch } from '../database/column-types.ts';
import { type MoveRow, moves } from '../database/move-schema.ts';
import { hosts, type ProjectRow, projects } from '../database/schema.ts';
import { type SagaContext, SourceUnsuitableError } from '../jobs/saga.ts';
import { sealOwner } from './reserve.ts';

/** Context of each step of a move: its record, its two hosts, and the login with which the new host reads the former. */

export type Context = SagaContext<'project.move'>;

export interface Moving {
  move: MoveRow;
  project: ProjectRow;
  password: string;
  /** Hosts may be gone once the project has moved. */
  from: typeof hosts.$inferSelect | undefined;
  to: typeof hosts.$inferSelect | undefined;
  /** The access of the other host, as it was when that became the host of the project. */
  opening?: AccessRows;
}

/** Null for a project that is being deleted before it has moved. */
export async function load({ db, job, settings }: Context): Promise<Moving | null> {
  const ofProject = eq(projects.id, job.projectId);
  const [[project], [move], [from], [to]] = await db.batch([
    db.select().from(projects).where(ofProject),
    db.select().from(moves).where(eq(moves.jobId, job.id)),
    db.select().from(hosts).where(eq(hosts.id, job.hostId)),
    db.select().from(hosts).where(eq(hosts.id, job.input.toHostId)),
  ]);
  if (!project || !move?.sealedPassword) return null;
  if (!(project.status === 'active' && from && to) && move.phase !== 'moved') return null;
  const { keyId, sealedPassword: sealed } = move;
  const password = await unseal(settings.CREDENTIAL_KEYS, sealOwner(job.id), { keyId, sealed });
  return { project, move, from, to, password };
}

/** Stores what is known of the move. */
export async function store({ db, job }: Context, { move }: Moving, change: Partial<MoveRow>): Promise<void> {
  Object.assign(move, change);
  await db
    .update(moves)
    .set({ ...change, updatedAt: new Date() })
    .where(eq(moves.jobId, job.id));
}

export const setBranch = (context: Context, moving: Moving, id: string, change: Partial<MovingBranch>) =>
  store(context, moving, {
    awaySince: null,
    branches: moving.move.branches.map((branch) => (branch.id === id ? { ...branch, ...change } : branch)),
  });

export const mainOf = ({ move: { branches } }: Moving): MovingBranch => {
  const [main] = branches;
  if (!main) throw new Error('a move without main');
  return main;
};

/** Attempts that have reached the other host. */
export const reached = new WeakSet<Context>();

export async function toHost<M extends Method>(
  context: Context,
  method: M,
  params: Params<M>,
): Promise<MethodResult<M>> {
  const result = await context.callHostOf(context.job.input.toHostId)(method, params);
  reached.add(context);
  return result;
}

export const of = ({ job }: Context, { id, database }: Pick<MovingBranch, 'id' | 'database'>) => ({
  project_id: job.projectId,
  branch_id: id,
  database,
});

export function sourceUrl({ job }: Context, { from, password }: Moving, database: string): string {
  if (!from) throw new Error('a move without its former host');
  return `postgresql://${moverLogin(job.id)}:${encodeURIComponent(password)}@${from.dbHost}:${from.directPort}/${database}`;
}

/** The login ends by itself if nothing extends it. */
const VALID_SECONDS = 900;
const EXTEND_EVERY_MS = 180_000;

export const NOT_EXTENDED =
  'The former host has removed the login of the move, because the gateway did not extend it in time. Move the project again.';

/**
 * Makes the login on the former host, or extends it, with the branches that can only be read.
 * @throws SourceUnsuitableError if it was removed meanwhile, so that branches could be written, or could not be removed
 */
export async function admit(
  context: Context,
  moving: Moving,
  more: Pick<Params<'move.admit'>, 'closes_next'> = {},
): Promise<void> {
  const { move, to, password } = moving;
  const { admitted_at, can_remove } = await context.callHost('move.admit', {
    job_id: context.job.id,
    project_id: context.job.projectId,
    database: mainOf(moving).database,
    verifier: await scramVerifier(password),
    from: [to?.dbHost ?? ''],
    valid_seconds: VALID_SECONDS,
    frozen: move.branches.filter(({ frozen }) => frozen).map(({ id }) => id),
    ...more,
  });
  if (!can_remove)
    throw new SourceUnsuitableError(
      'The former host cannot remove what a move leaves. Replace its pg_hba.conf and pg_ident.conf by what `branchgate-agent configuration` prints, and reload PostgreSQL.',
    );
  if (move.admittedAt === null) await store(context, moving, { admittedAt: admitted_at });
  if (move.admittedAt !== admitted_at) throw new SourceUnsuitableError(NOT_EXTENDED);
}

/**
 * Keeps the login while `work` lasts. An extension that is under way ends with it.
 * @param every milliseconds; set by tests only
 */
export async function whileAdmitted<T>(
  context: Context,
  moving: Moving,
  work: () => Promise<T>,
  every = EXTEND_EVERY_MS,
): Promise<T> {
  let extending: Promise<void> = Promise.resolve();
  const timer = setInterval(() => {
    extending = extending.then(() => admit(context, moving)).catch(() => {});
  }, every);
  try {
    return await work();
  } finally {
    clearInterval(timer);
    await extending;
  }
}
