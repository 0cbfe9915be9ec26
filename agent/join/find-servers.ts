import { z } from 'zod';
import { type Machine, StepFailure } from './machine.ts';

const MAJOR_MIN = 18;
/** Older releases of PgBouncer are not tested. */
const POOLER_MIN = [1, 18] as const;
/** From here on PgBouncer can have a standby, because it knows its peers. */
const PEERS_MIN = [1, 19] as const;

/** As `pg_lsclusters --json` prints them. */
const Clusters = z.array(
  z.object({
    version: z.union([z.string(), z.number()]).transform(Number),
    cluster: z.string(),
    port: z.coerce.number(),
    socketdir: z.string().optional(),
    pgdata: z.string(),
    configdir: z.string(),
    owneruid: z.coerce.number(),
    running: z.coerce.number(),
  }),
);

/** PostgreSQL's cluster and PgBouncer, as Debian's packages install them. */
export interface Servers {
  postgres: {
    version: number;
    /** Its unit, for instance `postgresql@18-main.service`. */
    unit: string;
    port: number;
    socketDir: string;
    dataDir: string;
    configDir: string;
    isRunning: boolean;
  };
  /** Runs PostgreSQL, PgBouncer and the agent. */
  user: string;
  poolerVersion: string;
  hasPeers: boolean;
}

export const POOLER_UNIT = 'pgbouncer.service';

const PACKAGES =
  "PostgreSQL 18 is in Debian's own packages from Debian 14 on, otherwise in those of postgresql.org: apt install postgresql-common && /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh";

/**
 * Looks for the servers that the agent works with.
 * @param wanted `<version>/<name>` of the cluster, where there are several
 * @throws StepFailure with the cause and the remedy
 */
export async function findServers(machine: Machine, wanted?: string): Promise<Servers> {
  const [cluster, poolerVersion] = await Promise.all([findCluster(machine, wanted), findPooler(machine)]);
  const user = machine.users().find(({ uid }) => uid === cluster.owneruid)?.name;
  if (user !== 'postgres')
    throw new StepFailure(
      'refused',
      `the cluster belongs to ${user ?? `user id ${cluster.owneruid}`}: use one of the user postgres, as PgBouncer and the agent run as that user`,
    );
  return {
    postgres: {
      version: cluster.version,
      unit: `postgresql@${cluster.version}-${cluster.cluster}.service`,
      port: cluster.port,
      socketDir: cluster.socketdir ?? '/var/run/postgresql',
      dataDir: cluster.pgdata,
      configDir: cluster.configdir,
      isRunning: cluster.running === 1,
    },
    user,
    poolerVersion,
    hasPeers: isAtLeast(poolerVersion, PEERS_MIN),
  };
}

async function findCluster(machine: Machine, wanted: string | undefined) {
  const { code, stdout } = await machine.query('pg_lsclusters', ['--json']);
  if (code === 127) throw new StepFailure('refused', `PostgreSQL is not installed. ${PACKAGES}`);
  const all = readClusters(stdout);
  const found = all.filter(
    ({ version, cluster }) =>
      version >= MAJOR_MIN && (wanted === undefined || wanted === `${version}/${cluster}`),
  );
  const [cluster] = found;
  if (found.length > 1)
    throw new StepFailure(
      'usage',
      `there are several clusters: choose one with --cluster ${found.map(({ version, cluster }) => `${version}/${cluster}`).join(' or ')}`,
    );
  if (cluster) return cluster;
  if (wanted !== undefined)
    throw new StepFailure(
      'usage',
      `there is no cluster ${wanted} of PostgreSQL ${MAJOR_MIN} or later: see pg_lsclusters`,
    );
  const older = all.map(({ version }) => version);
  throw new StepFailure(
    'refused',
    older.length > 0
      ? `PostgreSQL ${Math.max(...older)} is too old, because it can neither share blocks nor log authenticated users: install PostgreSQL ${MAJOR_MIN}. ${PACKAGES}`
      : `PostgreSQL has no cluster: make one on a volume that can share blocks, with pg_createcluster ${MAJOR_MIN} main`,
  );
}

function readClusters(text: string) {
  const reading = Clusters.safeParse(parsed(text));
  if (!reading.success)
    throw new StepFailure('refused', 'pg_lsclusters printed no list of clusters: upgrade postgresql-common');
  return reading.data;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function findPooler(machine: Machine): Promise<string> {
  const { code, stdout } = await machine.query('pgbouncer', ['--version']);
  if (code === 127) throw new StepFailure('refused', 'PgBouncer is not installed: apt install pgbouncer');
  const version = /^PgBouncer (\d+\.\d+(?:\.\d+)?)/.exec(stdout)?.[1] ?? '';
  if (!isAtLeast(version, POOLER_MIN))
    throw new StepFailure(
      'refused',
      `PgBouncer ${version} is too old: install ${POOLER_MIN.join('.')} or later, from postgresql.org for instance`,
    );
  return version;
}

function isAtLeast(version: string, [major, minor]: readonly [number, number]): boolean {
  const [ofMajor = 0, ofMinor = 0] = version.split('.').map(Number);
  return ofMajor > major || (ofMajor === major && ofMinor >= minor);
}
