import { and, eq, inArray, lt, ne, sql } from 'drizzle-orm';
import ipaddr from 'ipaddr.js';
import { z } from 'zod';
import { reachOf, readCidr } from '../../shared/cidr.ts';
import type { Failure } from '../../shared/failures.ts';
import { parseForeign } from '../../shared/foreign-json.ts';
import {
  isNetworkName,
  NETWORK_NAMES,
  type NetworkName,
  RANGES_OF_LIST,
} from '../../shared/named-networks.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { readBounded } from '../authentication/provider-keys.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { auditEvents, namedNetworks, networkRules, projects } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { nextAccessRevision } from './send-access.ts';

type Sources = Pick<Settings, 'CLOUDFLARE_NETWORKS_URLS' | 'GITHUB_META_URL'>;
type NamedNetworkRow = typeof namedNetworks.$inferSelect;

const FETCH_WITHIN_MS = 10_000;
const LIST_BYTES_MAX = 4 * 1024 * 1024;
/** A list of this age is read again before a new rule gets it. */
const FRESH_MS = 24 * 3_600_000;
/** A source that could not be read is not asked for new rules for so long. */
const FAILED_MS = 60_000;
/** What an audit event names of a change. */
const NAMED_CHANGES = 20;

/** The fewest bits of a range. A source that lists half of the internet is wrong, or not the source. */
const PREFIX_LEAST = { ipv4: 8, ipv6: 20 };

/**
 * Bits to which ranges are rounded, from exact to coarse, until a list is short enough. /24 and /48 are the
 * smallest networks that the internet routes.
 */
const ROUNDINGS = [
  { ipv4: 32, ipv6: 128 },
  { ipv4: 24, ipv6: 48 },
  { ipv4: 23, ipv6: 48 },
  { ipv4: 22, ipv6: 48 },
  { ipv4: 21, ipv6: 48 },
  { ipv4: 20, ipv6: 44 },
] as const;

const Meta = z.object({ actions: z.array(z.string()) });

interface Source {
  urls: (settings: Sources) => readonly string[];
  /** @throws Error if the text has another form */
  entries: (text: string) => string[];
  /** How many of `ROUNDINGS` may be tried. */
  roundings: number;
}

const SOURCES: Record<NetworkName, Source> = {
  cloudflare: {
    urls: ({ CLOUDFLARE_NETWORKS_URLS }) => CLOUDFLARE_NETWORKS_URLS,
    entries: (text) => text.split('\n'),
    roundings: 1,
  },
  'github-actions': {
    urls: ({ GITHUB_META_URL }) => [GITHUB_META_URL],
    entries: (text) => Meta.parse(parseForeign(text)).actions,
    roundings: ROUNDINGS.length,
  },
};

async function readText(url: string): Promise<string> {
  const signal = AbortSignal.timeout(FETCH_WITHIN_MS);
  // GitHub refuses requests without it.
  const response = await fetch(url, { headers: { 'User-Agent': 'branchgate' }, signal });
  if (!response.ok) throw new Error(`${new URL(url).host} responded with ${response.status}`);
  const tooLarge = () => new Error(`the list of ${new URL(url).host} is too large`);
  return new TextDecoder().decode(await readBounded(response, LIST_BYTES_MAX, tooLarge));
}

type Family = keyof typeof PREFIX_LEAST;
/** First and last address, as numbers. */
type Range = readonly [first: bigint, last: bigint];

const BITS = { ipv4: 32, ipv6: 128 } as const;
const numberOf = (address: ipaddr.IPv4 | ipaddr.IPv6): bigint =>
  address.toByteArray().reduce((sum, byte) => sum * 256n + BigInt(byte), 0n);

interface Network {
  family: Family;
  /** The first address. */
  start: bigint;
  length: number;
}

function networkOf(cidr: string): Network {
  const [address, length] = ipaddr.parseCIDR(cidr);
  return { family: address.kind(), start: numberOf(address), length };
}

/** @param bits a longer prefix is cut to it */
function rangeOf({ family, start, length }: Network, bits: (typeof ROUNDINGS)[number]): Range {
  const size = 1n << BigInt(BITS[family] - Math.min(length, bits[family]));
  const first = (start / size) * size;
  return [first, first + size - 1n];
}

/** Ranges that do not touch each other, in order. */
function joined(ranges: readonly Range[]): Range[] {
  const all: Range[] = [];
  for (const [first, last] of ranges.toSorted(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))) {
    const [before, end] = all.at(-1) ?? [0n, -2n];
    if (first > end + 1n) all.push([first, last]);
    else all[all.length - 1] = [before, last > end ? last : end];
  }
  return all;
}

function textOf(family: Family, first: bigint, length: number): string {
  const bytes = Array.from({ length: BITS[family] / 8 }, (_, n) =>
    Number((first >> BigInt(BITS[family] - 8 * (n + 1))) & 255n),
  );
  return `${ipaddr.fromByteArray(bytes)}/${length}`;
}

/** The networks that make up a range: each as large as its start allows. */
function* networksOf(family: Family, [from, to]: Range): Generator<string> {
  for (let first = from; first <= to; ) {
    let length = BITS[family];
    let size = 1n;
    while (length > 0 && first % (size * 2n) === 0n && first + size * 2n - 1n <= to) {
      size *= 2n;
      length -= 1;
    }
    yield textOf(family, first, length);
    first += size;
  }
}

/** The union of networks as few networks. */
function unionOf(networks: readonly Network[], bits: (typeof ROUNDINGS)[number]): string[] {
  return (['ipv4', 'ipv6'] as const).flatMap((family) => {
    const ofFamily = networks.filter((network) => network.family === family);
    const ranges = joined(ofFamily.map((network) => rangeOf(network, bits)));
    return ranges.flatMap((range) => [...networksOf(family, range)]);
  });
}

/** A public network that is not too large, in canonical form; null for anything else. */
function publicNetwork(entry: string): string | null {
  const reading = readCidr(entry.trim());
  if (!reading.ok) return null;
  const [address, length] = ipaddr.parseCIDR(reading.cidr);
  const isBounded = length >= PREFIX_LEAST[address.kind()];
  return isBounded && reachOf(address.toString()) === 'public' ? reading.cidr : null;
}

/**
 * The networks of a list, of which only what is a public network is taken. A list that is too long is rounded
 * as far as its source allows.
 * @throws Error if it is too short or too long
 */
export function readList(name: NetworkName, entries: readonly string[]): string[] {
  const { least, most } = RANGES_OF_LIST[name];
  const networks = [...new Set(entries.flatMap((entry) => publicNetwork(entry) ?? []))].map(networkOf);
  if (networks.length < least)
    throw new Error(`the list of ${name} has ${networks.length} networks, and needs ${least}`);
  let shortest = networks.length;
  for (const bits of ROUNDINGS.slice(0, SOURCES[name].roundings)) {
    const union = unionOf(networks, bits);
    if (union.length <= most) return union;
    shortest = union.length;
  }
  throw new Error(`the list of ${name} has ${shortest} networks, and may have ${most}`);
}

/** @throws Error of the network or of the list */
async function fetchList(name: NetworkName, settings: Sources): Promise<string[]> {
  const { urls, entries } = SOURCES[name];
  const texts = await Promise.all(urls(settings).map(readText));
  return readList(name, texts.flatMap(entries));
}

/**
 * Reads the list at its source, and stores it if it differs. A failure leaves the list that is stored.
 * @returns whether it was read
 */
async function refreshList(db: Database, settings: Sources, name: NetworkName, now: Date): Promise<boolean> {
  try {
    const ranges = await fetchList(name, settings);
    const change = { ranges, changedAt: now };
    const row = { name, version: 1, previous: [], ...change, checkedAt: now };
    await inOneBatch(db, [
      db.insert(namedNetworks).values(row).onConflictDoNothing(),
      db
        .update(namedNetworks)
        .set({
          ...change,
          previous: sql`${namedNetworks.ranges}`,
          version: sql`${namedNetworks.version} + 1`,
        })
        .where(and(eq(namedNetworks.name, name), ne(namedNetworks.ranges, ranges))),
      db.update(namedNetworks).set({ checkedAt: now, failedAt: null }).where(eq(namedNetworks.name, name)),
    ]);
    return true;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    logEvent('network_list.not_read', { network: name, reason });
    return false;
  }
}

/** What is stored of a list; `version` is 0 while none was ever read. */
async function storedList(db: Database, name: NetworkName): Promise<NamedNetworkRow | undefined> {
  const [list] = await db.select().from(namedNetworks).where(eq(namedNetworks.name, name));
  return list;
}

const NEVER = new Date(0);

/** Remembers that the source could not be read, also where no list is stored. */
async function recordFailure(db: Database, name: NetworkName, now: Date): Promise<void> {
  const none = { version: 0, ranges: [], previous: [], changedAt: NEVER, checkedAt: NEVER };
  await db
    .insert(namedNetworks)
    .values({ name, ...none, failedAt: now })
    .onConflictDoUpdate({ target: namedNetworks.name, set: { failedAt: now } });
}

/**
 * The list that a new rule gets, of today if its source responds. A source that does not is asked once a minute.
 * @returns or NETWORK_LIST_UNAVAILABLE
 */
export async function currentList(
  db: Database,
  settings: Sources,
  name: NetworkName,
  now: Date,
): Promise<Result<NamedNetworkRow, Failure>> {
  const isWithin = (ms: number, past: Date | null | undefined) =>
    past !== null && past !== undefined && now.getTime() - past.getTime() < ms;
  let list = await storedList(db, name);
  if (!isWithin(FRESH_MS, list?.checkedAt) && !isWithin(FAILED_MS, list?.failedAt)) {
    if (!(await refreshList(db, settings, name, now))) await recordFailure(db, name, now);
    list = await storedList(db, name);
  }
  return list && list.version > 0 ? ok(list) : fail({ code: 'NETWORK_LIST_UNAVAILABLE' });
}

const isBehind = ({ name, version }: Pick<NamedNetworkRow, 'name' | 'version'>) =>
  and(eq(networkRules.cidr, name), lt(networkRules.listVersion, version));

/** A change as an audit event shows it. */
function changeOf({ ranges, previous }: Pick<NamedNetworkRow, 'ranges' | 'previous'>) {
  const before = new Set(previous);
  const after = new Set(ranges);
  const added = ranges.filter((range) => !before.has(range));
  const removed = previous.filter((range) => !after.has(range));
  return {
    networks: ranges.length,
    added: added.length,
    removed: removed.length,
    examples: { added: added.slice(0, NAMED_CHANGES), removed: removed.slice(0, NAMED_CHANGES) },
  };
}

/**
 * Gives the projects with an older list a new revision of their access, each in one batch with its audit
 * event. One that was killed continues with the rest.
 */
async function updateRules(db: Database, list: NamedNetworkRow, now: Date): Promise<string[]> {
  const behind = await db
    .selectDistinct({ projectId: projects.id, tenantId: projects.tenantId })
    .from(networkRules)
    .innerJoin(projects, eq(projects.id, networkRules.projectId))
    .where(isBehind(list));
  const metadata = { network: list.name, ...changeOf(list) };
  for (const { projectId, tenantId } of behind) {
    const ofProject = and(eq(networkRules.projectId, projectId), isBehind(list));
    const isStill = isThere(networkRules, ofProject);
    const event = auditEvent('network_rule.list_changed', noActor(tenantId), { projectId, metadata }, now);
    const revision = sql`(select access_revision from ${projects} where id = ${projectId})`;
    await inOneBatch(db, [
      insertIf(db, auditEvents, event, isStill),
      nextAccessRevision(db, projectId, isStill),
      db.update(networkRules).set({ listVersion: list.version, revision }).where(ofProject),
    ]);
  }
  return behind.map(({ projectId }) => projectId);
}

/**
 * Reads the lists that rules name, and changes the projects that have them.
 * @returns the projects whose access has to be applied; a project that is left out is found at its next
 *   reconciliation
 */
export async function refreshLists(db: Database, settings: Sources, now: Date): Promise<string[]> {
  const used = await db
    .selectDistinct({ name: networkRules.cidr })
    .from(networkRules)
    .where(inArray(networkRules.cidr, [...NETWORK_NAMES]));
  const changed: string[] = [];
  for (const name of used.map((row) => row.name).filter(isNetworkName)) {
    await refreshList(db, settings, name, now);
    const list = await storedList(db, name);
    if (list) changed.push(...(await updateRules(db, list, now)));
  }
  return changed;
}

/** The public form of a network that a rule can name. */
export const NamedNetwork = z
  .strictObject({
    network: z.enum(NETWORK_NAMES),
    cidrs: z.array(z.string()).meta({
      description: 'What a rule with the name admits now. Empty: no rule had the name yet.',
      example: ['173.245.48.0/20'],
    }),
    changed_at: z.iso.datetime().nullable().meta({ description: 'When the list last changed.' }),
    checked_at: z.iso.datetime().nullable().meta({ description: 'When its source last confirmed it.' }),
  })
  .meta({ id: 'NamedNetwork' });

export const toNamedNetworkResponse = (
  network: NetworkName,
  row: NamedNetworkRow | undefined,
): z.output<typeof NamedNetwork> => {
  const list = row && row.version > 0 ? row : undefined;
  return {
    network,
    cidrs: list?.ranges ?? [],
    changed_at: list?.changedAt.toISOString() ?? null,
    checked_at: list?.checkedAt.toISOString() ?? null,
  };
};
