import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import type { Duplex } from 'node:stream';
import tls from 'node:tls';
import pg from 'pg';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { answerMeter } from '../postgres/bounded-socket.ts';
import { literal, type Session } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import type { AgentSettings } from '../process/settings.ts';
import { asOptions, VALUE_FORM } from '../rows/branch-session.ts';
import { finding, Refused, type Source, short, type Tls } from './source-address.ts';

/** A session with a source, and how the source has proved who it is. */
interface SourceSession {
  session: Session;
  tls: Tls;
}

const CONNECT_WITHIN_MS = 8_000;

/** The source is a tenant's, so each of its statements, and what it sends for one, is bounded. */
const STATEMENT_WITHIN_MS = 8_000;
/** A migration that holds a table has others that wait for it, and a lock that waits too makes them wait longer. */
const LOCK_WITHIN_MS = 2_000;
/** For a table whose rows are copied: the copy would begin again. */
const COPY_LOCK_WITHIN_MS = 300_000;
const ANSWER_BYTES_MAX = 32 * 2 ** 20;
/** `CopyData`: a piece of the rows of a `COPY`, of which nobody keeps more than a piece of the socket. */
const COPY_DATA = 0x64;

const OPTIONS = {
  search_path: 'pg_catalog',
  default_transaction_read_only: 'on',
  default_transaction_isolation: 'repeatable read',
  statement_timeout: STATEMENT_WITHIN_MS,
  lock_timeout: LOCK_WITHIN_MS,
  // An error instead of a policy, whose functions are a tenant's and would run as this login.
  row_security: 'off',
  // The values have one form on both sides.
  ...VALUE_FORM,
};

interface Bounds {
  options: string;
  /** Milliseconds for a statement; 0: none. */
  statementWithin: number;
}

const READING: Bounds = {
  options: asOptions(OPTIONS),
  statementWithin: STATEMENT_WITHIN_MS,
};

const WATCHING: Bounds = {
  options: asOptions({ ...OPTIONS, idle_session_timeout: 0 }),
  statementWithin: STATEMENT_WITHIN_MS,
};

/** A snapshot is kept for as long as its rows are copied. */
const SNAPSHOT = { ...OPTIONS, statement_timeout: 0, idle_in_transaction_session_timeout: 0 };

const COPYING: Bounds = {
  options: asOptions({ ...SNAPSHOT, lock_timeout: COPY_LOCK_WITHIN_MS }),
  statementWithin: 0,
};

const DESCRIBING: Bounds = { options: asOptions(SNAPSHOT), statementWithin: 0 };

/** Sessions of a snapshot: one that reads the catalog, or one that copies and compares rows. */
const OF_SNAPSHOT = { catalog: DESCRIBING, rows: COPYING };

/** Limits that servers before versions 17 and 14 do not know, so they cannot be options of `COPYING`. */
const WITHOUT_END =
  "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('transaction_timeout', 'idle_session_timeout')";

/** Changes at a source: a slot, a publication, whether it accepts writes. */
const CHANGING: Bounds = {
  options: asOptions({
    ...OPTIONS,
    default_transaction_read_only: 'off',
    default_transaction_isolation: 'read committed',
  }),
  statementWithin: STATEMENT_WITHIN_MS,
};

const MODES = { read: READING, change: CHANGING };

/** Errors of a certificate whose authority is unknown. Any other error of one is final. */
const UNKNOWN_AUTHORITY = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
]);

interface Sasl {
  mechanism: string;
}
/** Members that the driver does not declare. */
interface Internals {
  connection: { stream: Duplex; once: (event: 'connect' | 'sslconnect', listener: () => void) => void };
  saslSession: Sasl | null;
  _handleAuthSASL: (message: { mechanisms: string[] }) => void;
  _handleAuthCleartextPassword: () => void;
  _handleAuthMD5Password: () => void;
}

const BOUND = 'SCRAM-SHA-256-PLUS';
class Unproven extends Error {}

/**
 * A client of a server that a tenant has named. Without a certificate of a known authority, somebody between
 * could be that server. SCRAM with channel binding (RFC 5802 section 6) shows that the other end of this TLS
 * connection knows the password already, so nothing else is answered then.
 */
class SourceClient extends pg.Client {
  readonly #isUnverified: boolean;
  #isBound = false;

  constructor(config: pg.ClientConfig, isUnverified: boolean) {
    super({ ...config, enableChannelBinding: isUnverified } as pg.ClientConfig);
    this.#isUnverified = isUnverified;
    const { connection } = this.internals;
    connection.once(config.ssl === false ? 'connect' : 'sslconnect', () => {
      const bytesOf = answerMeter(COPY_DATA);
      const { stream } = connection;
      const push = stream.push.bind(stream);
      // Before the driver, and before the reader of a COPY, which has to be the only listener.
      stream.push = (chunk: Buffer | null) => {
        if (chunk !== null && bytesOf(chunk) > ANSWER_BYTES_MAX) {
          stream.destroy(new Error('it sent too much'));
          return false;
        }
        return push(chunk);
      };
    });
    const { internals } = this;
    const answerSasl = internals._handleAuthSASL.bind(this);
    internals._handleAuthSASL = (message) => {
      this.#isBound = message.mechanisms.includes(BOUND);
      if (this.#isUnverified && !this.#isBound) this.#refuse();
      else answerSasl(message);
    };
    if (!isUnverified) return;
    internals._handleAuthCleartextPassword = () => this.#refuse();
    internals._handleAuthMD5Password = () => this.#refuse();
  }

  private get internals(): Internals {
    return this as unknown as Internals;
  }

  #refuse(): void {
    this.internals.connection.stream.destroy(new Unproven());
  }

  /** @throws Unproven if the server has let the client in without that proof */
  requireProof(): void {
    // The driver forgets the exchange when the server's signature was right.
    if (this.#isUnverified && !(this.#isBound && this.internals.saslSession === null)) throw new Unproven();
  }
}

/** Certificates of the authorities that this host knows. Node before 22.15 knows those of Mozilla only. */
export async function readAuthorities({
  FOLLOW_CA_FILE,
}: Pick<AgentSettings, 'FOLLOW_CA_FILE'>): Promise<string[]> {
  const known =
    'getCACertificates' in tls
      ? [...tls.getCACertificates('default'), ...tls.getCACertificates('system')]
      : (tls as { rootCertificates: readonly string[] }).rootCertificates;
  return [...known, ...(FOLLOW_CA_FILE === undefined ? [] : [await readFile(FOLLOW_CA_FILE, 'utf8')])];
}

/** The authorities of the last session, and what trusts them. */
let trusted: { authorities: string; context: tls.SecureContext } | null = null;

/** OpenSSL takes longer to read all authorities than to connect, so sessions share them until they change. */
async function trustedContext(settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>): Promise<tls.SecureContext> {
  const ca = await readAuthorities(settings);
  const authorities = ca.join('\n');
  if (trusted?.authorities !== authorities)
    trusted = { authorities, context: tls.createSecureContext({ ca }) };
  return trusted.context;
}

async function connect(
  { address, host, port, user, password, database, isLocal, tls: proof = 'certificate' }: Source,
  secureContext: tls.SecureContext,
  bounds: Bounds,
  more: pg.ClientConfig & { replication?: 'database' } = {},
): Promise<SourceClient> {
  const isUnverified = proof === 'channel_binding';
  const ssl = isLocal !== true && {
    rejectUnauthorized: !isUnverified,
    ...(isUnverified
      ? {}
      : {
          secureContext,
          // The driver connects to the address; the certificate is of the name.
          checkServerIdentity: (_: string, certificate: tls.PeerCertificate) =>
            tls.checkServerIdentity(host, certificate),
        }),
    ...(isIP(host) === 0 && { servername: host }),
  };
  const client = new SourceClient(
    {
      host: address,
      port,
      user,
      password,
      database,
      ssl,
      application_name: 'branchgate',
      options: bounds.options,
      connectionTimeoutMillis: CONNECT_WITHIN_MS,
      query_timeout: bounds.statementWithin,
      // Nobody would notice that a source is gone for good.
      keepAlive: true,
      ...more,
    },
    isUnverified,
  );
  client.on('error', () => {});
  try {
    await client.connect();
    client.requireProof();
    return client;
  } catch (error) {
    end(client);
    throw error;
  }
}

/** Nobody waits for a server that may never answer. */
function end(client: SourceClient): void {
  client.end().catch(() => {});
  setTimeout(() => streamOf(client).destroy(), 1_000).unref();
}

const streamOf = (client: pg.Client) => (client as unknown as Internals).connection.stream;

/**
 * Runs `action` in a session with the source, whose connection is destroyed after a time.
 * @param options.within milliseconds
 * @param options.mode what the session is for
 * @returns what is wrong with the source if the session could not be opened or was lost
 */
export async function inSource<T>(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  source: Source,
  { within, mode = 'read' }: { within: number; mode?: keyof typeof MODES },
  action: (opened: SourceSession) => Promise<T>,
): Promise<Result<T, SourceFinding>> {
  const context = await trustedContext(settings);
  const run = async (proof: Tls) => {
    const session = await connect({ ...source, tls: proof }, context, MODES[mode]);
    const timer = setTimeout(() => streamOf(session).destroy(new Error('it took too long')), within);
    try {
      return await action({ session, tls: proof });
    } finally {
      clearTimeout(timer);
      end(session);
    }
  };
  try {
    return ok(
      await run(source.tls ?? 'certificate').catch((error) => {
        if (source.tls || source.mustVerify || !UNKNOWN_AUTHORITY.has(sqlState(error) ?? '')) throw error;
        return run('channel_binding');
      }),
    );
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    return fail(findingOf(error));
  }
}

type Opened = Promise<{ session: Session; end: () => void }>;

async function open(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  source: Source,
  bounds: Bounds,
  more?: { replication: 'database' },
): Opened {
  const session = await connect(source, await trustedContext(settings), bounds, more);
  return { session, end: () => end(session) };
}

/**
 * Opens a transaction of one snapshot, without a limit of time. The caller ends the session.
 * @param snapshot the snapshot of another such session; null: a new one
 * @param reads the catalog, whose locked tables are waited for two seconds, or rows
 * @throws an error that `findingOf` explains
 */
export async function openSnapshotSession(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  source: Source,
  snapshot: string | null,
  reads: keyof typeof OF_SNAPSHOT,
): Opened {
  const opened = await open(settings, source, OF_SNAPSHOT[reads]);
  await opened.session.query(WITHOUT_END);
  await opened.session.query('BEGIN');
  if (snapshot !== null) await opened.session.query(`SET TRANSACTION SNAPSHOT ${literal(snapshot)}`);
  return opened;
}

/** Opens a session for short queries, which lasts until the caller ends it. @throws an error that `findingOf` explains */
export const openReadingSession = (settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>, source: Source): Opened =>
  open(settings, source, WATCHING);

/**
 * Opens a session of the replication protocol (PostgreSQL documentation, 54.4), which knows no parameters. The caller
 * ends it: until then, or its next command, the snapshot that a new slot has exported can be used.
 * @throws an error that `findingOf` explains
 */
export async function openReplicationSession(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  source: Source,
): Opened {
  const opened = await open(settings, source, COPYING, { replication: 'database' });
  await opened.session.query(WITHOUT_END);
  return opened;
}

/** Advice about errors, by SQLSTATE or the code of the socket, of TLS or of the resolver. */
const BY_CODE: [RegExp, SourceFinding['problem'], string][] = [
  [
    /^28(?:P01|000)$/,
    'login',
    'The source refuses the login. Check the user, the password and its pg_hba.conf.',
  ],
  [/^3D000$/, 'login', 'The source has no such database.'],
  [/^53300$/, 'connection', 'The source has no connection left.'],
  [
    /^08P01$/,
    'connection',
    'The address is that of a connection pooler. Use the direct address of the server.',
  ],
  [
    /^5(?:7014|5P03)$/,
    'connection',
    'The source took too long, or a table is locked there. Try again later.',
  ],
  [/^ECONNREFUSED$/, 'connection', 'Nothing accepts connections at the address of the source.'],
  [
    /^(?:CERT_|ERR_TLS_CERT_ALTNAME_INVALID$)/,
    'tls',
    'The certificate of the source is not valid for its name, or has expired.',
  ],
  [
    /^(?:DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_)/,
    'tls',
    'This host does not know the authority of the certificate. Leave out sslmode, or ask the operator to add the authority.',
  ],
];

const UNPROVEN =
  'This host does not know the authority of the certificate, and the login does not use SCRAM with channel binding, so the source could be somebody else. Set password_encryption to scram-sha-256 there and set the password again, or ask the operator to add the authority.';
const NO_TLS = 'The source has no TLS, which the connection needs.';

/** Other errors quote the source, or say how the connection ended. */
export function findingOf(error: Error): SourceFinding {
  if (error instanceof Refused) return error.finding;
  if (error instanceof Unproven) return finding('tls', UNPROVEN);
  if (/does not support SSL/.test(error.message)) return finding('tls', NO_TLS);
  const code = sqlState(error) ?? '';
  const [, problem = 'connection', message] = BY_CODE.find(([pattern]) => pattern.test(code)) ?? [];
  return finding(problem, message ?? `The source could not be read: ${short(error.message)}.`);
}
