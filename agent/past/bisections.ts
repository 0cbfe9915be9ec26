import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Moment, microsecondsOf, momentAt } from '../../shared/moment.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { readTenant } from '../postgres/branches.ts';
import type { Pool } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { pastFolders } from './folders.ts';

/**
 * Bisections of users: between a time when something was right and one when it was wrong, each probe is a recovery to the middle.
 * PostgreSQL says which commits are next to it, so the search ends at one commit. A bisection keeps a copy that has replayed up
 * to the last good time, from which the next probe continues. It ends with the agent.
 */

/** Bisections of all tenants: each keeps a copy. */
const OF_HOST = 3;
const LIFE_MS = 3_600_000;

interface Bisection {
  project_id: string;
  branch_id: string;
  tenant: string;
  /** The last time that was good. */
  good: Moment;
  /** The first bad commit is at one of these times. */
  first: bigint;
  last: bigint;
  probe: Moment | null;
  /** Commits next to the probe, once it is recovered: the last one in it, and the one after. */
  beside: { before: Moment | null; after: Moment | null } | null;
  /** Times that cannot be judged, as beginnings and ends: between two commits each. */
  skipped: (readonly [bigint, bigint])[];
  /** Up to when the copy of the bisection has replayed; null: there is none. */
  advancedTo: Moment | null;
  timer: NodeJS.Timeout;
}

type Step = MethodResult<'bisect.step'>;

export class Bisections {
  readonly #settings: AgentSettings;
  readonly #all = new Map<string, Bisection>();

  constructor(settings: AgentSettings) {
    this.#settings = settings;
  }

  /** @throws HostError HOST_BUSY if the tenant has one, or the host has enough */
  async start(
    postgres: Pool,
    { bisection_id, project_id, branch_id, good, bad }: Params<'bisect.start'>,
  ): Promise<MethodResult<'bisect.start'>> {
    const tenant = await readTenant(postgres, project_id);
    const others = [...this.#all].filter(([id]) => id !== bisection_id).map(([, one]) => one);
    if (others.some((one) => one.tenant === tenant) || others.length >= OF_HOST)
      throw new HostError('HOST_BUSY', 'another bisection is open: end it first');
    const ends_at = new Date(Date.now() + LIFE_MS).toISOString();
    if (this.#all.has(bisection_id)) return { ends_at };
    const timer = setTimeout(() => this.end({ bisection_id, project_id }).catch(() => {}), LIFE_MS);
    timer.unref();
    const range = { first: microsecondsOf(good) + 1n, last: microsecondsOf(bad) };
    const nothing = { probe: null, beside: null, skipped: [], advancedTo: null };
    this.#all.set(bisection_id, { project_id, branch_id, tenant, good, ...range, ...nothing, timer });
    return { ends_at };
  }

  /** The next probe, or the commit. A repeated call without a verdict gets the same. */
  async step({ bisection_id, project_id, verdict }: Params<'bisect.step'>): Promise<Step> {
    const one = this.#all.get(bisection_id);
    if (one?.project_id !== project_id) return { step: null };
    const { branch_id, probe, beside } = one;
    if (verdict !== null && probe !== null && beside) {
      const { before, after } = beside;
      // Without a commit in between, the probe has the state of the last good time, or of the bad one.
      const begin = before === null ? one.first : max(microsecondsOf(before), one.first);
      const end = after === null ? one.last : min(microsecondsOf(after), one.last);
      if (verdict === 'skip') one.skipped.push([begin, end]);
      else if (verdict === 'bad') one.last = begin;
      else Object.assign(one, { good: probe, first: end });
      one.probe = null;
      one.beside = null;
    }
    const { first, last } = one;
    const range = { branch_id, good: one.good, from: momentAt(first), until: momentAt(last) };
    if (first >= last) return { step: { ...range, probe: null, first_bad: momentAt(last) } };
    one.probe ??= middleOf(first, last, one.skipped);
    return { step: { ...range, probe: one.probe, first_bad: null } };
  }

  /** The times with which a recovery of the probe begins. */
  probeOf(bisectionId: string, projectId: string): { at: Moment; good: Moment; advancedTo: Moment | null } {
    const { probe, good, advancedTo } = this.#open(bisectionId, projectId);
    if (probe === null) throw new HostError('SOURCE_MISSING', 'the bisection has no open probe');
    return { at: probe, good, advancedTo };
  }

  advanced(bisectionId: string, to: Moment | null): void {
    const one = this.#all.get(bisectionId);
    if (one) one.advancedTo = to;
  }

  recovered(bisectionId: string, beside: NonNullable<Bisection['beside']>): void {
    const one = this.#all.get(bisectionId);
    if (one) one.beside = beside;
  }

  async end({ bisection_id, project_id }: Params<'bisect.end'>): Promise<MethodResult<'bisect.end'>> {
    const one = this.#all.get(bisection_id);
    if (one?.project_id !== project_id) return { ended: false };
    clearTimeout(one.timer);
    this.#all.delete(bisection_id);
    await rm(this.folderOf(bisection_id), { recursive: true, force: true });
    return { ended: true };
  }

  /** Beside those of recoveries, which the start of the agent removes. */
  folderOf(bisectionId: string): string {
    return join(pastFolders(this.#settings).recoveries, bisectionId);
  }

  #open(bisectionId: string, projectId: string): Bisection {
    const one = this.#all.get(bisectionId);
    if (one?.project_id === projectId) return one;
    throw new HostError('SOURCE_MISSING', 'the bisection has ended: begin another one');
  }
}

/** @returns the middle of the longest time of the range that is not skipped; null: all of it is */
function middleOf(first: bigint, last: bigint, skipped: Bisection['skipped']): Moment | null {
  let longest = { from: first, length: 0n };
  let from = first;
  const inOrder = skipped.toSorted(([one], [other]) => (one < other ? -1 : 1));
  for (const [begin, end] of [...inOrder, [last, last] as const]) {
    const length = min(begin, last) - from;
    if (length > longest.length) longest = { from, length };
    from = max(from, end);
  }
  return longest.length === 0n ? null : momentAt(longest.from + longest.length / 2n);
}

const min = (one: bigint, other: bigint) => (one < other ? one : other);
const max = (one: bigint, other: bigint) => (one > other ? one : other);
