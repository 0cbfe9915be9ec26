import { and, eq, getTableColumns, isNotNull, type SQL, type SQLWrapper, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { quotaBytes } from '../../shared/project/storage-quota.ts';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import type { Result } from '../../shared/result.ts';
import { isOlder, VERSION } from '../../shared/version.ts';
import { openMoves } from '../database/conditions.ts';
import { type Database, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { moves } from '../database/move-schema.ts';
import { hosts, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { CaCertificate, Placement } from './enrolment.ts';
import { type HostLinks, isLinked } from './host-client.ts';
import {
  foundPair,
  HostMembership,
  hasNoPair,
  isPrimary,
  isSurelyClosed,
  leavesPrimary,
  pairOf,
} from './pair.ts';

const HostState = z
  .strictObject({
    described_at: z.iso.datetime(),
    agent_version: z.string().meta({ example: '1.0.0' }),
    postgres_version: z.string().meta({ example: '18.4' }),
    pooler_version: z.string().meta({ example: '1.25.2' }),
    clone_method: z.enum(['reflink', 'copy']).meta({
      description: '`reflink`: branches share their blocks with the source; `copy`: every block is copied.',
    }),
    disk_bytes: z.int().nullable().meta({ description: "Size of the volume with PostgreSQL's data." }),
    largest_source: z
      .strictObject({ bytes: z.int(), extents: z.int().nullable() })
      .nullable()
      .meta({
        description:
          'The largest database, and the extents in which it lies: many make its clones slow. Null: the file system does not report them.',
        example: { bytes: 1_073_741_824, extents: 812 },
      }),
    spares: z.int().nullable().meta({
      description:
        'Clones of snapshots that are ready for the next branches. Null: the agent does not report them.',
      example: 4,
    }),
    last_backup_at: z.iso.datetime().nullable().meta({ description: 'End of the last backup. Null: none.' }),
    last_archived_at: z.iso.datetime().nullable().meta({
      description: 'When the last finished segment of the WAL was archived. Null: never.',
    }),
    certificate_names: z
      .array(z.string())
      .nullable()
      .meta({
        description:
          'The DNS names that the certificates of both servers have. Null: the agent does not report them.',
        example: ['eu-1.db.example.com', '*.db.example.com'],
      }),
    project_extensions: z
      .array(z.strictObject({ name: z.string(), version: z.string() }))
      .nullable()
      .meta({
        description:
          'Extensions that a project can be created with here. Null: the agent does not report them.',
        example: [{ name: 'postgis', version: '3.6.0' }],
      }),
    warnings: z.array(z.string()).meta({
      description: 'A sentence for each fault of the set-up, with the correction.',
      example: ['There is no backup of the last 36 hours: make one, and check its timer.'],
    }),
  })
  .meta({ id: 'HostDescription' });

/** A database host as the platform operator sees it. */
export const Host = z
  .strictObject({
    id: z.uuid(),
    name: z.string().meta({ example: 'eu-1' }),
    db_host: z.string().meta({ example: 'eu-1.db.example.com' }),
    direct_port: z.int().meta({ example: 5432 }),
    pooled_port: z.int().meta({ example: 6432 }),
    ca_certificate: CaCertificate,
    linked: z.boolean().meta({ description: 'Whether its agent is currently connected.' }),
    draining: z.boolean().meta({ description: 'A draining host gets no new projects.', example: false }),
    ...Placement,
    available_version: z.string().nullable().meta({
      description:
        'The version of the gateway, where that of the agent is older: install it. Null: the agent is not older, or has reported nothing yet.',
      example: '1.1.0',
    }),
    members: z.array(HostMembership).meta({
      description: 'The primary, its standby and former primaries; a host without a standby is alone.',
    }),
    project_count: z.int().meta({ description: 'Projects on the host, failed ones included.', example: 3 }),
    free_bytes: z.int().nullable().meta({
      description: "Free disk for PostgreSQL's data a few minutes ago. Null: not known yet.",
      example: 214_748_364_800,
    }),
    description: HostState.nullable().meta({
      description: 'What its agent last reported. Null: nothing yet.',
    }),
    enrolled_at: z.iso.datetime().nullable().meta({ description: 'Null: no agent has enrolled yet.' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Host' });

/** Field by field: a newer gateway may have stored more. */
const toState = (
  { agent_version, postgres_version, pooler_version, clone_method, warnings, ...more }: HostDescription,
  describedAt: Date,
): z.output<typeof HostState> => ({
  described_at: describedAt.toISOString(),
  agent_version,
  postgres_version,
  pooler_version,
  clone_method,
  disk_bytes: more.disk_bytes,
  largest_source: more.largest_source,
  spares: more.spares ?? null,
  last_backup_at: more.last_backup_at,
  last_archived_at: more.last_archived_at,
  certificate_names: more.certificate_names ?? null,
  project_extensions: more.project_extensions ?? null,
  warnings,
});

const availableFor = (version: string | undefined): string | null =>
  version !== undefined && isOlder(version, VERSION) ? VERSION : null;

const projectsOn = (hostId: SQLWrapper | string) =>
  sql<number>`(select count(*) from ${projects} where ${projects.hostId} = ${hostId})`;

/** Rows for `toHostResponse`. */
export const hostRows = (db: Database) =>
  db
    .select({
      ...getTableColumns(hosts),
      projectCount: projectsOn(sql`hosts.id`).as('project_count'),
      foundPair,
    })
    .from(hosts)
    .$dynamic();

export const toHostResponse = async (
  env: HostLinks,
  row: Awaited<ReturnType<typeof hostRows>>[number],
): Promise<z.output<typeof Host>> => {
  const [linked, members] = await Promise.all([
    row.enrolledAt !== null && isLinked(env, row.id),
    pairOf(env, row.foundPair),
  ]);
  return {
    id: row.id,
    name: row.name,
    db_host: row.dbHost,
    direct_port: row.directPort,
    pooled_port: row.pooledPort,
    ca_certificate: row.caCertificate,
    linked,
    draining: row.draining,
    region: row.region,
    capacity: row.capacity,
    available_version: availableFor(row.description?.agent_version),
    members,
    project_count: row.projectCount,
    free_bytes: row.freeBytes,
    description: row.description && row.describedAt && toState(row.description, row.describedAt),
    enrolled_at: row.enrolledAt?.toISOString() ?? null,
    created_at: row.createdAt.toISOString(),
  };
};

const isHost = (hostId: string) => eq(hosts.id, hostId);

/** Returns whether there is such a host, enrolled or not. */
export async function isRegistered(db: Database, hostId: string): Promise<boolean> {
  const [row] = await db.select({ id: hosts.id }).from(hosts).where(isHost(hostId));
  return row !== undefined;
}

const takesProjects = and(eq(hosts.draining, false), isPrimary);
/** SQL condition of a host: it is enrolled, and projects may be placed on it. */
export const isOpenHost = and(isNotNull(hosts.enrolledAt), takesProjects);

/** Returns whether a project may be placed on the host that was chosen, which may be drained or removed meanwhile. */
export const acceptsProjects = (hostId: string): SQL => isThere(hosts, and(isHost(hostId), takesProjects));

/** SQL condition of `placed`: the project has a place on the host, or moves there. */
const isPlacedOn = (
  hostId: SQL | string,
  projectId: string,
): SQL => sql`placed.status <> 'failed' and placed.id <> ${projectId}
  and (placed.host_id = ${hostId} or placed.id in (
    select ${moves.projectId} from ${openMoves} where ${moves.toHostId} = ${hostId}))`;

/**
 * Returns whether the host has fewer projects than its capacity.
 * @param hostId a value or a column
 * @param projectId the project that is placed, which does not count; by default one that is not recorded
 */
export const hasPlaceOn = (hostId: SQL | string, projectId = ''): SQL => sql`coalesce(
  (select host.capacity from ${hosts} as host where host.id = ${hostId}) > (
    select count(*) from ${projects} as placed where ${isPlacedOn(hostId, projectId)}), 1)`;

/** Names of the extensions that projects can be created with on the host, as rows of `name`. */
export const extensionsOn = (hostId: SQLWrapper | string): SQL => sql`(
  select json_extract(value, '$.name') as name
  from ${hosts} as host, json_each(host.description, '$.project_extensions') where host.id = ${hostId})`;

/** Returns whether databases with these extensions, each named once, can be created on the host. */
export const offersExtensions = (hostId: SQLWrapper | string, names: readonly string[]): SQL =>
  sql`(select count(*) from ${extensionsOn(hostId)}
    where name in (select value from json_each(${JSON.stringify(names)}))) = ${names.length}`;

/** Returns whether a project moves to or from the host. */
export const isMoving = (hostId: string): SQL =>
  sql`exists (select 1 from ${openMoves} where ${hostId} in (${moves.fromHostId}, ${moves.toHostId}))`;

/**
 * Removes a host without projects. Its name is free afterwards, and its key and its token are worthless.
 * @param isOff the operator says that its machine is switched off
 * @returns or NOT_FOUND, HOST_NOT_EMPTY, HOST_HAS_STANDBY, HOST_NOT_FENCED
 */
export function removeHost(db: Database, hostId: string, isOff: boolean): Promise<Result<unknown, Failure>> {
  const count = projectsOn(hostId);
  return guardedWrite(db, {
    decides: (isAllowed) => db.delete(hosts).where(and(isHost(hostId), isAllowed)),
    rest: (isAllowed) => [leavesPrimary(db, hostId, isAllowed)],
    require: [
      [isThere(hosts, isHost(hostId)), 'NOT_FOUND'],
      [sql`${count} = 0`, { code: 'HOST_NOT_EMPTY', fields: { projects: count } }],
      [hasNoPair(hostId), 'HOST_HAS_STANDBY'],
      ...(isOff ? [] : ([[isSurelyClosed(hostId), 'HOST_NOT_FENCED']] as const)),
      [sql`not ${isMoving(hostId)}`, { code: 'HOST_NOT_EMPTY', fields: { projects: sql`1` } }],
    ],
  });
}

/**
 * Returns whether the host's free disk is enough for this quota and for what the host has promised already: the
 * unused part of the quotas of its other projects. True while its free disk is unknown.
 * @param hostId a value or a column
 * @param projectId the project of the quota, whose present quota does not count
 */
export const hasRoomOn = (
  { STORAGE_OVERCOMMIT }: Pick<Settings, 'STORAGE_OVERCOMMIT'>,
  hostId: SQL | string,
  projectId: string,
  quotaGib: number,
): SQL => {
  const promised = sql`(
    select coalesce(sum(max(placed.storage_quota_gib * ${quotaBytes(1)}
      - case when placed.host_id = ${hostId} then placed.storage_used_bytes else 0 end, 0)), 0)
    from ${projects} as placed where ${isPlacedOn(hostId, projectId)})`;
  const room = sql`(select host.free_bytes * ${STORAGE_OVERCOMMIT} from ${hosts} as host where host.id = ${hostId})`;
  return sql`coalesce(${room} >= ${promised} + ${quotaBytes(quotaGib)}, 1)`;
};
