import { Gauge, type Registry } from 'prom-client';
import { PROTOCOL_VERSION } from '../../shared/protocol/version.ts';
import { VERSION } from '../../shared/version.ts';
import type { CloneMethod } from '../cloning/create-clone.ts';
import type { Source } from '../measurement/disk-usage.ts';
import type { DrillState } from '../past/drills.ts';
import type { PastState } from '../past/past.ts';
import type { OldestIds } from '../postgres/oldest-ids.ts';
import type { Volume } from '../volumes/volumes.ts';

/** What is read when the metrics are. */
export interface Present {
  cloneMethod: CloneMethod;
  isLinked: () => boolean;
  /** The largest database that can be cloned; null where extents cannot be measured. */
  largestSource: () => Source | null;
  /** Clones of snapshots that no branch has yet, and those that branches took since the agent started. */
  spares: { count: number; taken: number };
  /** Branches that follow a database elsewhere; the largest lag and slot of all. */
  lags: {
    present: { following: number; stopped: number; lag_seconds: number | null; slot_bytes: number | null };
  };
  /** How far this host is behind its primary; null if it is no standby. */
  member: {
    lag: { lag_bytes: number | null; lag_seconds: number | null } | null;
    /** Whether the standby of this host receives its WAL; null without a standby. */
    hasStandby: () => Promise<boolean | null>;
  };
  past: () => Promise<PastState>;
  drills: () => Promise<DrillState>;
  /** Bytes of each log that the agent has not read yet. */
  unreadLogs: () => ReadonlyMap<string, number>;
  /** Files that wait for the archive; null without one. */
  unarchived: () => Promise<number | null>;
  volumes: () => Promise<Volume[]>;
  poolerMemory: () => Promise<number>;
  /** When the first certificate of both servers ends; null if none can be read. */
  certificateEnd: () => Promise<Date | null>;
  /** Databases with another version of their collation than the libraries of this machine. */
  outdatedCollations: () => Promise<string[]>;
  oldestIds: () => Promise<OldestIds>;
}

interface PresentValue {
  name: string;
  help: string;
  labels?: readonly string[];
  read: (present: Present) => Reading[] | Promise<Reading[]>;
}

interface Reading {
  value: number;
  labels?: Record<string, string>;
}

const only = (value: number | null): Reading[] => (value === null ? [] : [{ value }]);

const perVolume = (volumes: Volume[], measure: (volume: Volume) => number): Reading[] =>
  volumes.map((volume) => ({ value: measure(volume), labels: { volume: volume.names.join(',') } }));

const PRESENT_VALUES: readonly PresentValue[] = [
  {
    name: 'branchgate_agent_info',
    help: 'Version of the agent and of the link, and how clones are made; always 1',
    labels: ['version', 'protocol', 'clone_method'],
    read: ({ cloneMethod }) => [
      {
        value: 1,
        labels: {
          version: VERSION,
          protocol: String(PROTOCOL_VERSION),
          clone_method: cloneMethod,
        },
      },
    ],
  },
  {
    name: 'branchgate_agent_memory_bytes',
    help: 'Resident memory of the agent',
    read: () => only(process.memoryUsage.rss()),
  },
  {
    name: 'branchgate_link_up',
    help: 'Whether the agent is linked with the gateway',
    read: ({ isLinked }) => only(isLinked() ? 1 : 0),
  },
  {
    name: 'branchgate_largest_source_bytes',
    help: 'Bytes of the largest database on a file system with copy-on-write',
    read: ({ largestSource }) => only(largestSource()?.bytes ?? null),
  },
  {
    name: 'branchgate_largest_source_extents',
    help: 'Extents of the largest database, which determine how long a clone of it takes',
    read: ({ largestSource }) => only(largestSource()?.extents ?? null),
  },
  {
    name: 'branchgate_spares',
    help: 'Clones of snapshots that are ready for the next branches',
    read: ({ spares }) => only(spares.count),
  },
  {
    name: 'branchgate_spares_taken',
    help: 'Branches that got a spare since the agent started',
    read: ({ spares }) => only(spares.taken),
  },
  {
    name: 'branchgate_following',
    help: 'Branches that follow a database elsewhere',
    labels: ['state'],
    read: ({ lags: { present } }) => [
      { value: present.following, labels: { state: 'following' } },
      { value: present.stopped, labels: { state: 'stopped' } },
    ],
  },
  {
    name: 'branchgate_following_lag_seconds',
    help: 'Largest lag of a branch behind the database that it follows',
    read: ({ lags: { present } }) => only(present.lag_seconds),
  },
  {
    name: 'branchgate_following_slot_bytes',
    help: 'Most WAL that the slot of a branch keeps at its source',
    read: ({ lags: { present } }) => only(present.slot_bytes),
  },
  {
    name: 'branchgate_standby_connected',
    help: 'Whether the standby of this host receives its WAL',
    read: async ({ member }) => {
      const isConnected = await member.hasStandby();
      return only(isConnected === null ? null : Number(isConnected));
    },
  },
  {
    name: 'branchgate_standby_lag_bytes',
    help: 'WAL of the primary that this standby has not replayed',
    read: ({ member: { lag } }) => only(lag?.lag_bytes ?? null),
  },
  {
    name: 'branchgate_standby_lag_seconds',
    help: 'Age of the data of this standby, which grows while its primary is away',
    read: ({ member: { lag } }) => only(lag?.lag_seconds ?? null),
  },
  {
    name: 'branchgate_recovery_wanted_seconds',
    help: 'Time back to which databases are to be recoverable; 0 where no past is kept',
    read: async ({ past }) => only(3600 * (await past()).hours),
  },
  {
    name: 'branchgate_recovery_window_seconds',
    help: 'Time back to which databases can be recovered',
    read: async ({ past }) => {
      const { hours, from } = await past();
      return only(hours === 0 ? null : from === null ? 0 : (Date.now() - from.getTime()) / 1000);
    },
  },
  {
    name: 'branchgate_archived_wal_bytes',
    help: 'Bytes of the WAL that is archived for recoveries',
    read: async ({ past }) => only((await past()).archivedBytes),
  },
  {
    name: 'branchgate_recovery_drills_failing',
    help: 'Projects whose last drill of a recovery has failed',
    read: async ({ drills }) => only((await drills()).failing),
  },
  {
    name: 'branchgate_recovery_drills_overdue',
    help: 'Projects without a drill of a recovery that has passed within two weeks',
    read: async ({ drills }) => only((await drills()).overdue),
  },
  {
    name: 'branchgate_archive_waiting_files',
    help: 'Finished files of the WAL that PostgreSQL has not archived yet',
    read: async ({ unarchived }) => only(await unarchived()),
  },
  {
    name: 'branchgate_log_unread_bytes',
    help: "Bytes of a server's log in which connection attempts have not been counted yet",
    labels: ['log'],
    read: ({ unreadLogs }) => [...unreadLogs()].map(([log, value]) => ({ value, labels: { log } })),
  },
  {
    name: 'branchgate_pooler_memory_bytes',
    help: "Memory in PgBouncer's own caches, which grows with every login that it has read",
    read: async ({ poolerMemory }) => only(await poolerMemory()),
  },
  {
    name: 'branchgate_certificate_end_seconds',
    help: 'Unix time at which the first certificate of both servers ends',
    read: async ({ certificateEnd }) => {
      const end = await certificateEnd();
      return only(end === null ? null : end.getTime() / 1000);
    },
  },
  {
    name: 'branchgate_outdated_collations',
    help: 'Databases that cannot be cloned, because the libraries of the machine have another version of their collation',
    read: async ({ outdatedCollations }) => only((await outdatedCollations()).length),
  },
  {
    name: 'branchgate_oldest_id_age',
    help: 'Ids since the oldest row that is not frozen; PostgreSQL refuses writes at 2,144 million',
    labels: ['kind'],
    read: async ({ oldestIds }) =>
      Object.entries(await oldestIds()).map(([kind, value]) => ({ value, labels: { kind } })),
  },
  {
    name: 'branchgate_disk_free_bytes',
    help: 'Free bytes of each volume that tenants can fill',
    labels: ['volume'],
    read: async ({ volumes }) => perVolume(await volumes(), ({ freeBytes }) => freeBytes),
  },
  {
    name: 'branchgate_disk_free_inodes',
    help: 'Free inodes of each volume that tenants can fill, where the file system does not make them as needed',
    labels: ['volume'],
    read: async ({ volumes }) =>
      perVolume(
        (await volumes()).filter(({ inodes }) => inodes !== null),
        ({ inodes }) => inodes?.free ?? 0,
      ),
  },
  {
    name: 'branchgate_disk_size_bytes',
    help: 'Size of each volume that tenants can fill',
    labels: ['volume'],
    read: async ({ volumes }) => perVolume(await volumes(), ({ sizeBytes }) => sizeBytes),
  },
];

/**
 * Adds the gauges of what is so at the moment. One that cannot be read, because a server is away, is missing
 * from the metrics.
 * @param onTrouble why one cannot be read
 */
export function registerGauges(
  registry: Registry,
  present: Present,
  onTrouble: (name: string, error: unknown) => void,
): void {
  for (const { name, help, labels = [], read } of PRESENT_VALUES) {
    new Gauge({
      name,
      help,
      labelNames: [...labels],
      registers: [registry],
      async collect() {
        this.reset();
        // Without labels, `reset` sets 0 instead of removing the value.
        if (labels.length === 0) this.remove();
        try {
          for (const reading of await read(present)) this.set(reading.labels ?? {}, reading.value);
        } catch (error) {
          onTrouble(name, error);
        }
      },
    });
  }
}
