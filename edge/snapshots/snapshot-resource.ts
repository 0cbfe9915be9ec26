import { z } from 'zod';
import { SNAPSHOT_KINDS } from '../../shared/branch/snapshot.ts';
import type { snapshots } from '../database/snapshot-schema.ts';

export type SnapshotRow = typeof snapshots.$inferSelect;

const Bytes = z.int().nonnegative();
const Timestamp = z.iso.datetime();

export const Snapshot = z
  .strictObject({
    id: z.uuid(),
    name: z.string().nullable().meta({ example: 'before-migration' }),
    branch_id: z
      .uuid()
      .meta({ description: 'The branch that it was taken of, which may be deleted by now.' }),
    kind: z.enum(SNAPSHOT_KINDS).meta({
      description: '`safety`: what the branch held before a reset.',
      example: 'manual',
    }),
    independent: z.boolean().meta({
      description:
        'It shares no block with the branch. The newest snapshot of `main` becomes independent in the background, if the host has room.',
    }),
    size_bytes: Bytes.meta({ example: 8_388_608 }),
    own_bytes: Bytes.nullable().meta({
      description: 'What its deletion frees, as last measured. Null: not measured.',
      example: 212_992,
    }),
    shared_bytes: Bytes.nullable().meta({
      description: 'What it shares with other databases of the project. Null: not measured.',
      example: 8_175_616,
    }),
    taken_at: Timestamp,
    expires_at: Timestamp.nullable().meta({ description: 'Null: it is kept until it is deleted.' }),
  })
  .meta({ id: 'Snapshot' });

export const toSnapshotResponse = (row: SnapshotRow): z.output<typeof Snapshot> => ({
  id: row.id,
  name: row.name,
  branch_id: row.branchId,
  kind: row.kind === 'deleted' ? 'safety' : row.kind,
  independent: row.independent,
  size_bytes: row.sizeBytes,
  own_bytes: row.ownBytes,
  shared_bytes: row.sharedBytes,
  taken_at: row.takenAt.toISOString(),
  expires_at: row.expiresAt?.toISOString() ?? null,
});
