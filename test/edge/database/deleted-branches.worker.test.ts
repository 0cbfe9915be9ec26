import { expect, test } from 'vitest';
import { projectBranches } from '../../../edge/database/schema.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { READS, statementsOf } from '../../support/records/project-reads.ts';
import { branchRow, insertBranch, startRecords } from '../../support/records/records.ts';

const LIVE = 10;
const DELETED = IS_NIGHTLY ? 20_000 : 400;
/** D1 binds at most 100 values. */
const TOGETHER = 4;

const { binding, db } = await startRecords();

/** The rows that D1 has read for it, which it also charges. */
async function rowsRead(work: (typeof READS)[string]): Promise<number> {
  let sum = 0;
  for (const { text, values } of await statementsOf(work))
    sum += (
      await binding
        .prepare(text)
        .bind(...values)
        .all()
    ).meta.rows_read;
  return sum;
}

const readAll = async () =>
  Object.fromEntries(
    await Promise.all(Object.entries(READS).map(async ([name, work]) => [name, await rowsRead(work)])),
  );

test('what each request of a project reads stays the same after any number of deleted branches', {
  timeout: 600_000,
}, async () => {
  for (let n = 0; n < LIVE; n += 1) await insertBranch(db, 'active');
  const before = await readAll();
  expect(before['the list of branches']).toBeGreaterThanOrEqual(LIVE);
  for (let made = 0; made < DELETED; made += 100 * TOGETHER)
    await db.batch(
      Array.from({ length: 100 }, () =>
        db
          .insert(projectBranches)
          .values(
            Array.from({ length: TOGETHER }, () => ({ ...branchRow('deleted'), deletedAt: new Date() })),
          ),
      ) as never,
    );
  expect(await db.$count(projectBranches)).toBe(LIVE + DELETED);
  expect(await readAll()).toEqual(before);
});
