import { MANAGED_DATABASE } from '../../shared/branch/database-name.ts';
import { COPY_JOBS } from '../../shared/limits.ts';

/**
 * Where PostgreSQL runs code of tenants: the kinds of database and of process, and what bounds each. Triggers, checks,
 * defaults, casts and index expressions run wherever rows are read or written, so a process without a client counts too.
 * The watchdogs, `protectDatabase`, `boundedSocket` and the directory of databases read these tables, and a test compares
 * them with a host at work (`test/agent/guard/workers.pg.test.ts`).
 */

interface DatabaseForm {
  /** Its name, of which an expression of PostgreSQL has the same meaning. */
  form: RegExp;
  /**
   * What a watchdog does about it. `block`: it accepts no connection for a while. `end`: its processes end, and with them
   * the operation. `none`: it accepts no login, or only one whose statements name nothing of a tenant.
   */
  excess: 'block' | 'end' | 'none';
  /** Connections at most, if `protectDatabase` limits them. */
  connections: 'BRANCH_CONNECTIONS' | number | null;
  /** Bytes that a copy on which statements are tried may grow by, besides as much as it has. A branch is one while it is rehearsed. */
  mayGrow?: number;
}

const workName = (prefix: string) => new RegExp(`^bg${prefix}_[0-9a-f]{32}$`);
const work = (prefix: string, connections: number) =>
  ({ form: workName(prefix), excess: 'end', connections }) as const;
const closed = (prefix: string) => ({ form: workName(prefix), excess: 'none', connections: null }) as const;

/** Sessions of a masking: one for the values, and one that ends. */
const MASKING_SESSIONS = 2;
/** Of a copy: those that copy rows, and the one that makes the schema. */
const LOAD_SESSIONS = COPY_JOBS.max + 1;
/** Of a proof of statements: the session that runs them, and the dump of what they leave. */
const PROOF_SESSIONS = 4;
/** Sessions of a rehearsed change: the one that runs it, the one that looks at its locks, and dumps of the schema. */
const REHEARSAL_SESSIONS = 6;
/** Of a comparison with a snapshot: catalogs and rows. */
const COMPARISON_SESSIONS = 10;
/** Of a trial: the statements, and those of the comparison with the state before. */
const TRIAL_SESSIONS = 12;
/** No quota counts them, or only after a minute. */
const TRIED_BYTES = 2 ** 30;

export const DATABASES = {
  /** Of `main` and of every other branch. */
  branch: {
    form: MANAGED_DATABASE,
    excess: 'block',
    connections: 'BRANCH_CONNECTIONS',
    mayGrow: TRIED_BYTES,
  },
  masking: work('mask', MASKING_SESSIONS),
  load: work('load', LOAD_SESSIONS),
  comparison: work('diff', COMPARISON_SESSIONS),
  /** The scratch database in which the statements of a schema difference are tried. */
  proof: { ...work('proof', PROOF_SESSIONS), mayGrow: TRIED_BYTES },
  /** The copy on which statements are tried. */
  trial: { ...work('try', TRIAL_SESSIONS), mayGrow: TRIED_BYTES },
  /** The clone on which a change is tried. */
  rehearsal: { ...work('change', REHEARSAL_SESSIONS), mayGrow: TRIED_BYTES },
  /** A branch that is being made. */
  build: closed('job'),
  spare: closed('spare'),
  snapshot: closed('snap'),
  /** Replaces a snapshot whose blocks its source shares. */
  copy: closed('copy'),
} as const satisfies Record<string, DatabaseForm>;

export type DatabaseKind = keyof typeof DATABASES;

export const DATABASE_KINDS = Object.keys(DATABASES) as DatabaseKind[];

/** @returns null for a database of the operator or of the agent, in which no tenant has an object */
export const databaseKind = (name: string): DatabaseKind | null =>
  DATABASE_KINDS.find((kind) => DATABASES[kind].form.test(name)) ?? null;

/** What a process can take from other tenants. */
export type Bound =
  | 'locks'
  | 'ids'
  | 'age'
  | 'temporary'
  | 'log'
  | 'memory'
  | 'processor'
  | 'connections'
  /** What it keeps in the queue of NOTIFY as a listener. What it sends counts for its database. */
  | 'listening';

/** The watchdogs, by the names in the agent's log. */
export type GuardName =
  | 'locks'
  | 'connections'
  | 'pooled clients'
  | 'old transactions'
  | 'transaction ids'
  | 'autovacuum'
  | 'notifications'
  | 'files'
  | 'disk'
  | 'growth';

/** What else bounds a process. */
type Mechanism =
  /** The setting of the database, which `protectDatabase` makes. Only a superuser may change it. */
  | 'temp_file_limit'
  | 'log_min_messages'
  | 'CONNECTION LIMIT'
  /** The drop-in of PostgreSQL's unit: all processes together. */
  | 'MemoryMax'
  /** Its leader, which waits for it, is bounded. */
  | 'leader'
  /** The server: a setting, or what it refuses. */
  | 'server'
  /** What is left of the processors is shared. */
  | 'shared';

/** Over the network, over the unix socket, or by the agent for a client over WebSocket (`AGENT_ADDRESS`). */
export type Way = 'network' | 'local' | 'agent';

interface ProcessForm {
  /** `backend_type` in `pg_stat_activity`. */
  backend: string;
  databases: readonly DatabaseKind[];
  /** A client backend's login; others have that of their leader, their subscription or a superuser. */
  login?: RegExp;
  /** How a client backend is connected; any way, if it is left out. */
  way?: Way;
  bounds: Record<Bound, GuardName | Mechanism>;
  /**
   * Age at which `old transactions` ends it, instead of TRANSACTION_SECONDS: a transaction of an operation lasts as long as
   * the operation, in a database that nobody else works in.
   */
  transactionSeconds?: number;
  /**
   * How it is ended. `signal`: by SIGTERM. `disable`: by SIGTERM and, because PostgreSQL starts it again, by stopping what
   * follows. `autovacuum`: by SIGTERM, but not because its branch is blocked: it also does what protects the host.
   */
  end: 'signal' | 'disable' | 'autovacuum';
}

const LOGIN = /^u_[0-9a-f]{32}_(?:owner|rw|ro)$/;
const QUERY_LOGIN = /^u_[0-9a-f]{32}_query$/;

const BOUNDS = {
  locks: 'locks',
  ids: 'transaction ids',
  age: 'old transactions',
  temporary: 'temp_file_limit',
  log: 'log_min_messages',
  memory: 'MemoryMax',
  processor: 'shared',
  connections: 'connections',
  listening: 'notifications',
} as const satisfies ProcessForm['bounds'];
const OF_OPERATION = { ...BOUNDS, connections: 'CONNECTION LIMIT' } as const;
/** PostgreSQL refuses LISTEN without a client. */
const WITHOUT_CLIENT = { ...BOUNDS, connections: 'server', listening: 'server' } as const;

const session = { backend: 'client backend', databases: ['branch'], bounds: BOUNDS, end: 'signal' } as const;
const ofOperation = {
  backend: 'client backend',
  bounds: OF_OPERATION,
  transactionSeconds: 86_400,
  end: 'signal',
} as const;
const worker = (kind: string) =>
  ({
    backend: `logical replication ${kind} worker`,
    databases: session.databases,
    bounds: WITHOUT_CLIENT,
    end: 'disable',
  }) as const;

export const PROCESSES = {
  client: { ...session, login: LOGIN, way: 'network' },
  /** A direct session of a client over WebSocket, which the agent pipes. */
  websocket: { ...session, login: LOGIN, way: 'agent' },
  /** A session of the pooler, and those that the agent opens for a client with the client's login. */
  pooled: { ...session, login: LOGIN, way: 'local' },
  /** Queries, comparisons with their dumps, rehearsals, and the role of a subscription. */
  query: { ...session, login: QUERY_LOGIN },
  masking: { ...ofOperation, databases: ['masking'] },
  load: { ...ofOperation, databases: ['load'] },
  comparison: { ...ofOperation, databases: ['comparison'] },
  /** Bounded to 15 s by the comparison. */
  proof: { ...ofOperation, databases: ['proof'], transactionSeconds: 60 },
  /** Bounded to 32 s by its session, and the comparison after it. */
  trial: { ...ofOperation, databases: ['trial'], transactionSeconds: 120 },
  /** Bounded to 10 minutes by the rehearsal. */
  rehearsal: { ...ofOperation, databases: ['rehearsal'], transactionSeconds: 600 },
  /** The first session in a database that a branch may get. */
  spare: { ...ofOperation, databases: ['spare', 'build'] },
  apply: worker('apply'),
  'parallel apply': worker('parallel apply'),
  /** Copies a table that was added at a source, in one transaction. */
  tablesync: { ...worker('tablesync'), transactionSeconds: 86_400 },
  parallel: {
    backend: 'parallel worker',
    databases: DATABASE_KINDS,
    bounds: { ...WITHOUT_CLIENT, age: 'leader' },
    end: 'signal',
  },
  autovacuum: {
    backend: 'autovacuum worker',
    databases: DATABASE_KINDS,
    bounds: { ...WITHOUT_CLIENT, age: 'autovacuum' },
    end: 'autovacuum',
  },
} as const satisfies Record<string, ProcessForm>;

export type ProcessKind = keyof typeof PROCESSES;

export const PROCESS_KINDS = Object.keys(PROCESSES) as ProcessKind[];

/** A process with a database, as `pg_stat_activity` shows it. */
export interface SeenProcess {
  backend: string;
  /** Name of its database. */
  database: string;
  /** Null without one. */
  login: string | null;
  way: Way;
}

/** @returns null for a process that this table does not have */
export function processKind({ backend, database, login, way }: SeenProcess): ProcessKind | null {
  const found = databaseKind(database);
  return (
    PROCESS_KINDS.find((kind) => {
      const form: ProcessForm = PROCESSES[kind];
      return (
        form.backend === backend &&
        found !== null &&
        form.databases.includes(found) &&
        (form.login === undefined || form.login.test(login ?? '')) &&
        (form.way === undefined || form.way === way)
      );
    }) ?? null
  );
}

/** @param usual in seconds, for a process whose kind has no age of its own */
export function transactionAge(kind: ProcessKind | null, usual: number): number {
  const form: ProcessForm | null = kind && PROCESSES[kind];
  return Math.max(usual, form?.transactionSeconds ?? 0);
}

/**
 * Whether a watchdog looks at a process. One that the table does not have is looked at by all, and so is what only whole
 * branches have: files, disk and clients of the pooler.
 */
export function isWatched(kind: ProcessKind | null, guard: GuardName): boolean {
  if (kind === null || OF_BRANCHES.has(guard)) return true;
  const bounds: readonly string[] = Object.values(PROCESSES[kind].bounds);
  return bounds.includes(guard);
}

const OF_BRANCHES: ReadonlySet<GuardName> = new Set(['files', 'disk', 'growth', 'pooled clients']);

const MB = 2 ** 20;

/** Bytes that a session of the agent reads: all together, and for one answer, which the driver keeps in memory. */
interface SocketBound {
  bytes: number;
  answer: number;
}

const ANSWERS_OF_ROWS = { bytes: Number.POSITIVE_INFINITY, answer: 16 * MB };

/** The sessions in which the agent runs what a tenant can make: code of a tenant can send endless errors and notices. */
export const SESSIONS = {
  /** Reads pages of rows for several operations. */
  page: ANSWERS_OF_ROWS,
  /** Changes rows, or runs a client's statements. */
  statement: { bytes: 16 * MB, answer: 16 * MB },
  /** Digests of all rows of a large table; catalogs, or rows that are fetched together. */
  comparison: { bytes: 16 * 1024 * MB, answer: 32 * MB },
  load: ANSWERS_OF_ROWS,
  /** A step of a change, whose rows nobody reads. */
  change: { bytes: 64 * MB, answer: 16 * MB },
  /** The plan reads the catalogs. */
  masking: { bytes: Number.POSITIVE_INFINITY, answer: 32 * MB },
  /** Of the role of a subscription, and of the login that runs what a source has in its schema. */
  following: { bytes: Number.POSITIVE_INFINITY, answer: 32 * MB },
  /** A request of SQL over HTTP. A row of few and short cells has twice the bytes of its JSON, whose bound is 10 MiB. */
  sql: { bytes: 24 * MB, answer: 24 * MB },
  /** Repairs of rights. */
  repair: { bytes: 16 * MB, answer: 16 * MB },
} as const satisfies Record<string, SocketBound>;

export type AgentSession = keyof typeof SESSIONS;

/**
 * The second PostgreSQL of a recovery, at most one on a host: what it has of a tenant is read by `pg_dump` and `COPY`. It ends
 * with the agent.
 */
export const SECOND_SERVER = {
  /** Sessions that copy, their catalog, the dump, and one of the agent. */
  connections: 2 * COPY_JOBS.max + 8,
  /** Address space of each of its processes. */
  addressBytes: 2 * 2 ** 30,
  buffersMb: 64,
  /** Temporary files of a session. */
  temporaryMb: 1024,
  /** Added to the priority of the agent: its work yields to that of clients. */
  nice: 15,
  /** Milliseconds for the replay, and for the copy of the database. */
  replayWithin: 3_600_000,
  copyWithin: 6 * 3_600_000,
  origins: 64,
} as const;
