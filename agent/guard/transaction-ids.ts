import { PROCESSES } from '../postgres/tenant-code.ts';
import type { Finding, Guard, GuardedBranch, Observation, TenantSession } from './guard.ts';
import { MEMBERS_OF_PAGE, type MultixactMembers, type NewMembers } from './multixact-members.ts';

/** A branch may take the ids of this time in one burst. */
const BURST_SECONDS = 10;

/**
 * Members of multixacts that PostgreSQL has in memory and writes together, for instance at a checkpoint. As many
 * count for nobody within ten minutes, because it is unknown who took them.
 */
const UNWRITTEN_MEMBERS = 32 * MEMBERS_OF_PAGE;
const UNWRITTEN_SECONDS = 600;

/**
 * Who has a rate of its own: the clients of a branch, or the workers of its subscription. These catch up as fast as they
 * can after a pause, which is no attack: they are ended, and PostgreSQL starts them again after five seconds.
 */
type Holder = 'clients' | 'workers';
type Taken = Map<GuardedBranch, number>;

const holderOf = ({ kind }: Pick<TenantSession, 'kind'>): Holder =>
  kind !== null && PROCESSES[kind].end === 'disable' ? 'workers' : 'clients';

/** What is remembered of a session until it is seen in a transaction again. */
type Seen = Pick<TenantSession, 'transaction' | 'newestId'>;

/**
 * Transaction ids, of which the whole host has two thousand million before old ones have to be freed.
 * PostgreSQL's statistics do not count a statement before it ends, so the ids are estimated: each server
 * process numbers its transactions, and those that are seen with an id count as many as have been begun
 * since. What is left of the ids that the host has given out goes to the long transactions that were seen
 * with a new id: these are of subtransactions. The members of multixacts count as well: several transactions that
 * lock the same rows use them up faster than ids.
 */
export class TransactionIds implements Guard {
  readonly name = 'transaction ids';
  readonly reason = 'transaction_ids';
  readonly #perSecond: number;
  #before: Pick<Observation, 'at' | 'nextId'> | null = null;
  /** By session. */
  #seen = new Map<string, Seen>();
  /** Ids above the allowed rate, by the id of the branch. */
  readonly #excess: Record<Holder, Map<string, number>> = { clients: new Map(), workers: new Map() };
  readonly #members: Pick<MultixactMembers, 'read'>;
  /** Members that counted for nobody. */
  #unwritten = 0;

  constructor(perSecond: number, members: Pick<MultixactMembers, 'read'>) {
    this.#perSecond = perSecond;
    this.#members = members;
  }

  check(server: Observation): Finding[] {
    const { at, nextId, memberOffset, sessions } = server;
    const used = this.#before ? nextId - this.#before.nextId : 0;
    const seconds = this.#before ? (at - this.#before.at) / 1000 : 0;
    this.#before = { at, nextId };
    const taken = this.#estimate(sessions, used);
    this.#seen = new Map(sessions.map((session) => [session.key, this.#remember(session)]));
    const members = this.#membersOf(sessions, taken, this.#members.read(memberOffset), seconds);
    const ofWorkers = this.#overLimit('workers', taken.workers, new Map(), seconds).map((finding) => ({
      ...finding,
      branches: [],
      sessions: sessions.filter(
        (session) =>
          holderOf(session) === 'workers' && finding.branches.some((one) => one === session.branch),
      ),
      mayReturn: true as const,
    }));
    return [...ofWorkers, ...this.#overLimit('clients', taken.clients, members, seconds)];
  }

  /**
   * Divides new members: those whose transactions still run among the branches of these, as in the sample, and
   * the others among the branches that took ids.
   */
  #membersOf(
    sessions: readonly TenantSession[],
    taken: Record<Holder, Taken>,
    { count, ids }: NewMembers,
    seconds: number,
  ): Map<GuardedBranch, number> {
    const recent = Math.max(0, this.#unwritten - (UNWRITTEN_MEMBERS / UNWRITTEN_SECONDS) * seconds) + count;
    this.#unwritten = Math.min(recent, UNWRITTEN_MEMBERS);
    const members = new Map<GuardedBranch, number>();
    const counted = recent - this.#unwritten;
    if (counted === 0 || ids.length === 0) return members;
    const branchOf = new Map(
      sessions.flatMap(({ branch, ids: held }) => (branch ? held.map((id) => [id, branch] as const) : [])),
    );
    const add = (branch: GuardedBranch, share: number) =>
      members.set(branch, (members.get(branch) ?? 0) + share * counted);
    let ended = 0;
    for (const id of ids) {
      const branch = branchOf.get(id);
      if (branch) add(branch, 1 / ids.length);
      else ended += 1 / ids.length;
    }
    const all = [...taken.clients, ...taken.workers];
    const takenIds = all.reduce((sum, [, each]) => sum + each, 0);
    for (const [branch, each] of all) if (takenIds > 0) add(branch, (ended * each) / takenIds);
    return members;
  }

  #estimate(sessions: readonly TenantSession[], used: number): Record<Holder, Taken> {
    const taken: Record<Holder, Taken> = { clients: new Map(), workers: new Map() };
    const add = (session: TenantSession, ids: number) => {
      const ofHolder = taken[holderOf(session)];
      if (session.branch && ids > 0) ofHolder.set(session.branch, (ofHolder.get(session.branch) ?? 0) + ids);
    };
    let left = used;
    for (const session of sessions.filter(({ hasId }) => hasId)) {
      const ids = Math.min(this.#begunSince(session), left);
      add(session, ids);
      left -= ids;
    }
    const nested = sessions.filter((session) => this.#takesMore(session));
    for (const session of nested) add(session, left / nested.length);
    return taken;
  }

  /** Transactions of the session since it was last seen in one. */
  #begunSince({ key, transaction }: TenantSession): number {
    const before = this.#seen.get(key)?.transaction ?? null;
    return transaction === null || before === null ? 0 : Math.max(0, transaction - before);
  }

  /** Whether a transaction holds another id than before. */
  #takesMore({ key, isActive, transaction, newestId }: TenantSession): boolean {
    const before = this.#seen.get(key);
    return (
      isActive && transaction !== null && transaction === before?.transaction && newestId !== before.newestId
    );
  }

  #remember({ key, transaction, newestId }: TenantSession): Seen {
    return { transaction: transaction ?? this.#seen.get(key)?.transaction ?? null, newestId };
  }

  #overLimit(holder: Holder, taken: Taken, members: Taken, seconds: number) {
    const known = this.#excess[holder];
    for (const [id, excess] of known) {
      const rest = excess - this.#perSecond * seconds;
      if (rest > 0) known.set(id, rest);
      else known.delete(id);
    }
    return [...new Set([...taken.keys(), ...members.keys()])].flatMap((branch) => {
      const ids = taken.get(branch) ?? 0;
      const ofMultixacts = members.get(branch) ?? 0;
      const excess = (known.get(branch.branch_id) ?? 0) + ids + ofMultixacts;
      known.set(branch.branch_id, excess);
      if (excess <= this.#perSecond * BURST_SECONDS) return [];
      known.delete(branch.branch_id);
      return [{ sessions: [], branches: [branch], detail: detailOf(excess, ofMultixacts) }];
    });
  }
}

const detailOf = (excess: number, members: number) => ({
  transaction_ids: Math.round(excess),
  ...(members > 0 && { multixact_members: Math.round(members) }),
});
