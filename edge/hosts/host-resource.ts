import { z } from 'zod';
import type { hosts } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { CaCertificate } from './enrolment.ts';
import { isLinked } from './host-client.ts';

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
    free_bytes: z.int().nullable().meta({
      description: "Free disk for PostgreSQL's data a few minutes ago. Null: not known yet.",
      example: 214_748_364_800,
    }),
    enrolled_at: z.iso.datetime().nullable().meta({ description: 'Null: no agent has enrolled yet.' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Host' });

export const toHostResponse = async (
  env: Env,
  row: typeof hosts.$inferSelect,
): Promise<z.output<typeof Host>> => ({
  id: row.id,
  name: row.name,
  db_host: row.dbHost,
  direct_port: row.directPort,
  pooled_port: row.pooledPort,
  ca_certificate: row.caCertificate,
  linked: row.enrolledAt !== null && (await isLinked(env, row.id)),
  draining: row.draining,
  free_bytes: row.freeBytes,
  enrolled_at: row.enrolledAt?.toISOString() ?? null,
  created_at: row.createdAt.toISOString(),
});
