import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { isInNetwork, reachOf } from '../../shared/cidr.ts';
import type { ProbedSource, SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { SourcePolicy } from './source-policy.ts';

/** The parts of a source's URL. */
export interface SourceUrl {
  host: string;
  port: number;
  user: string;
  password: string;
  database: string;
  /** The URL asks for a certificate of a known authority. */
  mustVerify: boolean;
}

/** How a source proves who it is. */
export type Tls = ProbedSource['tls'];

/** A source with the address that every connection to it uses. */
export interface Source extends SourceUrl {
  address: string;
  /** How it has proved who it is, which it has to do again. Left out: that is found out. */
  tls?: Tls;
  /** The address is the folder of a socket: a server of this host, which no tenant can name. */
  isLocal?: true;
}

export const finding = (
  problem: SourceFinding['problem'],
  message: string,
  more: Partial<SourceFinding> = {},
): SourceFinding => ({
  problem,
  severity: 'error',
  path: 'source_url',
  message,
  object: null,
  statement: null,
  ...more,
});

/** A refusal because of the source, so a retry is useless. */
export class Refused extends Error {
  readonly finding: SourceFinding;

  constructor(refused: SourceFinding) {
    super(refused.message);
    this.finding = refused;
  }
}

const failed = (problem: SourceFinding['problem'], message: string) => fail(finding(problem, message));

const DEFAULT_PORT = 5432;

/**
 * Parameters that change nothing about where the connection goes or who is trusted. Any other one is refused:
 * libpq has `host`, `hostaddr`, `service` and `passfile`, which name something else than the rest of the URL.
 */
const PARAMETERS = new Set([
  'sslmode',
  'sslnegotiation',
  'channel_binding',
  'connect_timeout',
  'application_name',
  'target_session_attrs',
]);
const TLS_MODES: Record<string, { mustVerify: boolean }> = {
  require: { mustVerify: false },
  'verify-ca': { mustVerify: true },
  'verify-full': { mustVerify: true },
};

/** A name of the DNS, or an address. No path of a socket, no list of hosts, no zone of an address. */
const HOST = /^(?:[a-z0-9_](?:[a-z0-9_.-]{0,252})|\[[0-9a-f:.]+\])$/i;

/** @returns the parts, or what is wrong, never with the password */
export function readSourceUrl(text: string): Result<SourceUrl, SourceFinding> {
  const url = URL.parse(text.trim());
  if (!url || !/^postgres(?:ql)?:$/.test(url.protocol))
    return failed('url', 'The source is not a URL: postgresql://user:password@host:5432/database.');
  if (!HOST.test(url.hostname)) return failed('url', 'The URL of the source needs one host.');
  const parts = [url.username, url.password, url.pathname.slice(1)].map(decoded);
  const [user, password, database] = parts;
  if (!user || !password || !database)
    return failed('url', 'The URL of the source needs a user, a password and a database.');
  for (const name of url.searchParams.keys())
    if (!PARAMETERS.has(name))
      return failed('url', `The URL of the source has a parameter that is not accepted: ${short(name)}.`);
  const sslmode = url.searchParams.get('sslmode') ?? 'require';
  const mode = Object.hasOwn(TLS_MODES, sslmode) ? TLS_MODES[sslmode] : undefined;
  if (!mode) return failed('tls', 'The connection needs TLS. Use sslmode=require or verify-full in the URL.');
  const host = url.hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '');
  return ok({ host, port: Number(url.port || DEFAULT_PORT), user, password, database, ...mode });
}

function decoded(part: string): string | null {
  try {
    const text = decodeURIComponent(part);
    // PostgreSQL's protocol ends a text with a NUL.
    return text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}

const TEXT_MAX = 200;
/** A text from the request or the source, which may be long. */
export const short = (text: string): string =>
  text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text;

/** A server that claims to be PostgreSQL may send anything as a number. */
export const numberOf = (value: unknown): number =>
  Math.max(0, Math.min(Math.round(Number(value)) || 0, Number.MAX_SAFE_INTEGER));

/** Names in one finding. */
const NAMED_MAX = 20;

export function listNames(names: readonly string[]): string {
  const more = names.length - NAMED_MAX;
  return `${names.slice(0, NAMED_MAX).map(short).join(', ')}${more > 0 ? `, and ${more} more` : ''}`;
}

const LOOK_UP_WITHIN_MS = 5_000;

interface Network {
  lookUp: (host: string) => Promise<{ address: string }[]>;
  /** Addresses of this machine: a service of it may admit those only. */
  own: () => string[];
}

const REAL: Network = {
  lookUp: (host) => lookup(host, { all: true, verbatim: true }),
  own: () => Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address)),
};

/**
 * Resolves the name of a source once. The address is what is connected to, so that a second look at the DNS
 * cannot lead elsewhere. A source is chosen by a tenant, and what only this host can reach is not the tenant's:
 * an address that is not public is refused, also if it is one of several.
 */
export async function resolveSource(
  { FOLLOW_PRIVATE_NETWORKS }: Pick<AgentSettings, 'FOLLOW_PRIVATE_NETWORKS'>,
  source: SourceUrl,
  { onlyPublicAddresses }: Pick<SourcePolicy, 'onlyPublicAddresses'>,
  { lookUp, own }: Network = REAL,
): Promise<Result<Source, SourceFinding>> {
  const late = new Promise<null>((resolve) => setTimeout(resolve, LOOK_UP_WITHIN_MS, null).unref());
  const found = await Promise.race([lookUp(source.host).catch(() => null), late]);
  const [first, ...others] = found ?? [];
  if (!first) return failed('address', `The name ${short(source.host)} has no address.`);
  const ownAddresses = own();
  const isAllowed = ({ address }: { address: string }) =>
    isIP(address) !== 0 &&
    (!onlyPublicAddresses ||
      FOLLOW_PRIVATE_NETWORKS.some((network) => isInNetwork(address, network)) ||
      (reachOf(address) === 'public' && !ownAddresses.includes(address)));
  if (![first, ...others].every(isAllowed))
    return failed(
      'address',
      'The source is not at a public address. Use its public address, or ask the operator of the database host to allow its network.',
    );
  return ok({ ...source, address: first.address });
}
