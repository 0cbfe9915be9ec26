import { FOLLOWED_OF_TENANT_MAX, FOLLOWED_ON_HOST_MAX } from '../../shared/limits.ts';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { readTenant } from '../postgres/branches.ts';
import type { Pool } from '../postgres/connect.ts';
import { finding } from './source-address.ts';
import type { SourcePolicy } from './source-policy.ts';

/** The places of a host for databases that follow another one, of which a move takes one too. */

export interface PlacesHost {
  postgres: Pool;
  copies: {
    /** The projects that will follow when their copies end, or when those before this one do. */
    following: (jobId?: string) => string[];
  };
}

/**
 * Why the project may not follow: without a worker, replication of its branch or of another tenant's would stop.
 * @param jobId of a copy that has begun, and yields to those that began before it
 */
export async function limitFinding(
  { postgres, copies }: PlacesHost,
  projectId: string,
  { takesTenantPlace }: Pick<SourcePolicy, 'takesTenantPlace'>,
  jobId?: string,
): Promise<SourceFinding[]> {
  const { rows } = await postgres.query<{ all: number; own: number; places: number }>(
    `WITH followed AS (
       SELECT project_id FROM following WHERE cutover IS DISTINCT FROM 'done' UNION SELECT unnest($2::uuid[])
     )
     SELECT count(*)::int AS all, least($3, current_setting('max_logical_replication_workers')::int) AS places,
       count(*) FILTER (WHERE coalesce(tenant, project_id::text) = $4)::int AS own
     FROM followed LEFT JOIN project USING (project_id) WHERE project_id <> $1`,
    [projectId, copies.following(jobId), FOLLOWED_ON_HOST_MAX, await readTenant(postgres, projectId)],
  );
  const { all = 0, own = 0, places = 0 } = rows[0] ?? {};
  const limit = (message: string) => [finding('limit', message, { path: '' })];
  if (takesTenantPlace && own >= FOLLOWED_OF_TENANT_MAX)
    return limit(
      `On this host, ${FOLLOWED_OF_TENANT_MAX} projects of your tenant already follow another database, which is the limit. Cut one of them over, or stop it.`,
    );
  if (places === 0)
    return limit(
      'Nothing can follow on this database host before its PostgreSQL is restarted once, because it was a standby. Contact its operator.',
    );
  if (all < places) return [];
  return limit(
    takesTenantPlace
      ? 'No more branches can follow on this database host. Contact its operator.'
      : 'As many databases as can follow another one do so on the new host. Wait until one of them is cut over.',
  );
}
