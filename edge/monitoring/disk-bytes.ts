import { and, eq, or, sql } from 'drizzle-orm';
import type { SQLiteTable } from 'drizzle-orm/sqlite-core';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { projectBranches, snapshots } from '../database/schema.ts';

type Disk = NonNullable<ProjectMeasurement['disk']>;

/** Records what the project's branches and snapshots take of the disk, where it has changed. */
export async function storeDiskBytes(db: Database, projectId: string, disk: Disk): Promise<void> {
  const ids = disk.map(({ id }) => id);
  const measured = JSON.stringify(disk);
  const update = <T extends typeof projectBranches | typeof snapshots>(table: T) => {
    const value = (name: 'own_bytes' | 'shared_bytes') =>
      sql<number>`(select value ->> ${name} from json_each(${measured}) where value ->> 'id' = ${table.id})`;
    const ownBytes = value('own_bytes');
    const sharedBytes = value('shared_bytes');
    return db
      .update(table as SQLiteTable)
      .set({ ownBytes, sharedBytes })
      .where(
        and(
          eq(table.projectId, projectId),
          isOneOf(table.id, ids),
          or(sql`${table.ownBytes} is not ${ownBytes}`, sql`${table.sharedBytes} is not ${sharedBytes}`),
        ),
      );
  };
  await db.batch([update(projectBranches), update(snapshots)]);
}
