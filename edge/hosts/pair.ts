import { and, eq, gt, isNull, ne, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { SYNC_STATES } from '../../shared/protocol/durability.ts';
import {
  type HostMember,
  MEMBER_ROLES,
  type MemberClaims,
  type MemberRole,
  type MemberState,
} from '../../shared/protocol/standby.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type Database, type DatabaseBinding, isThere, openDatabase } from '../database/database.ts';
import { hosts, projects } from '../database/schema.ts';
import { readSettings } from '../settings.ts';
import { type HostLinks, hostCaller, hostLink } from './host-client.ts';

/**
 * A host and its standby. One statement changes the roles of both (`edge/failover/states.ts`). The generation of a record orders
 * all changes, so an agent ignores an older one.
 */

export type HostRow = typeof hosts.$inferSelect;

export const HostMembership = z
  .strictObject({
    host_id: z.uuid(),
    role: z.enum(MEMBER_ROLES).meta({
      description:
        '`primary`: serves clients; `standby`: has a copy of the primary that follows it; `fenced`: a former primary, whose servers stay closed.',
    }),
    lag_bytes: z.int().nullable().meta({
      description:
        'WAL of the primary that the standby has not replayed. Null: it is no standby, or it or the primary cannot be asked.',
    }),
    lag_seconds: z.number().nullable().meta({
      description: 'Age of the data of the standby. Null: it is no standby, or cannot be asked.',
    }),
    sync: z.enum(SYNC_STATES).nullable().meta({
      description:
        'Commits of projects with the durability `sync`: `confirming`: the standby confirms them; `waiting`: it is away, and they wait for it; `off`: there are none, or it has not caught up since its copy. Null: it is no standby.',
    }),
  })
  .meta({
    id: 'HostMembership',
    example: {
      host_id: '0b0e9d4c-6a5f-4a39-9b0a-0d6f3b1f7c21',
      role: 'standby',
      lag_bytes: 1024,
      lag_seconds: 0.4,
      sync: 'off',
    },
  });

/** SQL condition of a host: it serves projects. */
export const isPrimary: SQL = isNull(hosts.standbyOf);

const roleOf = ({ role }: Pick<HostRow, 'role'>): MemberRole => (role === 'closing' ? 'primary' : role);

/** A standby that has begun to copy this host, and is none of a former time. */
export const followsHost = (hostId: string | SQL) =>
  and(eq(hosts.standbyOf, hostId), eq(hosts.role, 'standby'), gt(hosts.generation, 0));

/** Returns whether the host of a project has a standby that has begun to copy it, as an SQL condition. */
export const hasStandby = (projectId: string): SQL =>
  isThere(
    hosts,
    followsHost(sql`(select placed.host_id from ${projects} as placed where placed.id = ${projectId})`),
  );

/** Reads the newest record of a host for its agent. Null: there is no such host. */
export async function readMember(
  env: DatabaseBinding,
  hostId: string,
): Promise<{ row: HostRow; member: HostMember } | null> {
  const db = openDatabase(env.DB);
  const [[row], [standby]] = await db.batch([
    db.select().from(hosts).where(eq(hosts.id, hostId)),
    db.select({ id: hosts.id }).from(hosts).where(followsHost(hostId)),
  ]);
  return row ? { row, member: memberOf(row, standby?.id ?? null, env) } : null;
}

/** A standby is promoted so many leases after the last renewal of its primary, which closes itself meanwhile. */
const LEASES_UNTIL_PROMOTED = 1.5;

const memberOf = (row: HostRow, standbyId: string | null, env: DatabaseBinding): HostMember => {
  const role = roleOf(row);
  const hasStandby = role === 'primary' && standbyId !== null;
  const promotesAfter = hasStandby ? readSettings(env).AUTO_PROMOTE_SECONDS : undefined;
  return {
    role,
    generation: row.generation,
    closing: row.role === 'closing',
    standby_id: hasStandby ? standbyId : null,
    lease_seconds: promotesAfter === undefined ? null : Math.floor(promotesAfter / LEASES_UNTIL_PROMOTED),
  };
};

type FoundHost = Pick<HostRow, 'id' | 'role' | 'standbyOf' | 'sync'>;

/** A column of a host's row: its primary, and all that follow or followed that, oldest first. */
export const foundPair = sql`(
  select json_group_array(json_object('id', member.id, 'role', member.role, 'standbyOf', member.standby_of, 'sync', member.sync))
  from (select id, role, standby_of, sync from hosts as one
    where coalesce(hosts.standby_of, hosts.id) in (one.id, one.standby_of) order by one.created_at) as member)`
  .mapWith((json: string) => JSON.parse(json) as FoundHost[])
  .as('found_pair');

/** The pair of a host for its record, with how far the standby is. */
export const pairOf = (
  env: HostLinks,
  found: readonly FoundHost[],
): Promise<z.output<typeof HostMembership>[]> => {
  const ofPrimary = found.find(({ standbyOf }) => standbyOf === null)?.sync ?? 'off';
  return Promise.all(
    found.map(async ({ id, ...row }) => {
      const role = roleOf(row);
      const state = role === 'standby' ? await readState(env, id) : null;
      const { lag_bytes = null, lag_seconds = null } = state ?? {};
      return { host_id: id, role, lag_bytes, lag_seconds, sync: role === 'standby' ? ofPrimary : null };
    }),
  );
};

/**
 * Renews the lease of a primary that needs one.
 * @param claims `lease_seconds` by the record that the host has, which may be older
 * @returns whether it has one, or HOST_UNAVAILABLE while its standby is taking its place
 */
export async function renewLease(
  env: HostLinks,
  hostId: string,
  { role, generation, lease_seconds }: HostMember,
  claims: z.output<typeof MemberClaims>,
): Promise<Result<boolean, Failure>> {
  if (role !== 'primary') return ok(false);
  const link = hostLink(env, hostId);
  if (lease_seconds === null) {
    const isDropped = generation === 0 || (await link.dropLease(generation));
    return isDropped ? ok(false) : fail({ code: 'HOST_UNAVAILABLE' });
  }
  const seconds = Math.max(lease_seconds, claims.lease_seconds ?? 0);
  return ok(claims.renew && (await link.renewLease(generation, Math.ceil(seconds * LEASES_UNTIL_PROMOTED))));
}

/** For the records of a primary and its projects. */
export async function recordSync(env: DatabaseBinding, hostId: string, { sync }: MemberState): Promise<void> {
  await openDatabase(env.DB)
    .update(hosts)
    .set({ sync })
    .where(and(eq(hosts.id, hostId), sql`${hosts.sync} <> ${sync}`));
}

/** Null: the member cannot be asked. */
export const readState = (env: HostLinks, hostId: string): Promise<MemberState | null> =>
  hostCaller(env, hostId)('member.read', {}).catch(() => null);

/**
 * Returns whether a host can get a standby: it is a primary, and has none.
 * @returns or NOT_FOUND, HOST_NOT_PRIMARY, HOST_HAS_STANDBY
 */
export async function standbyTarget(
  db: Database,
  name: string,
  primaryId: string,
): Promise<Result<null, Failure>> {
  const [primary] = await db.select().from(hosts).where(eq(hosts.id, primaryId));
  if (!primary?.enrolledAt) return fail({ code: 'NOT_FOUND' });
  if (primary.standbyOf !== null) return fail({ code: 'HOST_NOT_PRIMARY' });
  const [other] = await db
    .select({ is: hasOtherStandby({ name, standby_of: primaryId }) })
    .from(hosts)
    .limit(1);
  return other?.is ? fail({ code: 'HOST_HAS_STANDBY' }) : ok(null);
}

/** Returns whether a host has another standby than that of this name, or is the successor of one. */
export const hasOtherStandby = ({ name, standby_of }: { name: string; standby_of: string | null }) =>
  sql<number>`exists (select 1 from ${hosts} as other where other.standby_of = ${standby_of} and other.name <> ${name})`;

/**
 * Returns whether a host may be removed as far as its standby is concerned.
 * @returns a condition
 */
export const hasNoPair = (hostId: string): SQL => sql`not ${isThere(hosts, eq(hosts.standbyOf, hostId))}`;

/**
 * Returns whether a former primary has reported that its servers are stopped. A partitioned one may serve clients, and
 * learns nothing more once its record is removed.
 */
export const isSurelyClosed = (hostId: string): SQL =>
  sql`not ${isThere(hosts, and(eq(hosts.id, hostId), eq(hosts.role, 'fenced'), ne(hosts.appliedGeneration, hosts.generation)))}`;

/** Changes the record of the primary of a host that is removed, which then drops its slot. */
export const leavesPrimary = (db: Database, hostId: string, condition: SQL) =>
  db
    .update(hosts)
    .set({ generation: sql`${hosts.generation} + 1` })
    .where(
      and(
        sql`${hosts.id} = (select member.standby_of from ${hosts} as member where member.id = ${hostId})`,
        condition,
      ),
    );
