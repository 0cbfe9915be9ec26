import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import type { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { firstByDay } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

/** Tests the table browser on a typical sample database. */

const STORE = readFileSync(join(import.meta.dirname, '../support/music-store.sql'), 'utf8');
const PAGE = 50;

/** Rows by table, and the columns of its primary key. */
const TABLES = {
  album: [347, 'album_id'],
  artist: [275, 'artist_id'],
  customer: [59, 'customer_id'],
  employee: [8, 'employee_id'],
  genre: [25, 'genre_id'],
  invoice: [412, 'invoice_id'],
  invoice_line: [2240, 'invoice_line_id'],
  media_type: [5, 'media_type_id'],
  playlist: [18, 'playlist_id'],
  playlist_track: [8715, 'playlist_id', 'track_id'],
  track: [3503, 'track_id'],
} as const;

interface RowPage {
  rows: Record<string, unknown>[];
  has_more: boolean;
}

let api: Api;
let tables: string;
let ownerUrl: string;

beforeAll(async () => {
  api = await ownerOf('music-store');
  const { id } = await api.project('Music store');
  await api.branch(id, 'store');
  tables = `/api/v1/projects/${id}/branches/store/tables`;
  ownerUrl = (await api.credentials(id, 'store')).direct_url;
  await query(ownerUrl, STORE);
});

const rowsOf = (table: string) => `${tables}/${table}/rows`;

test('lists the eleven tables and their keys', async () => {
  const { body } = await api.get<{ tables: { name: string; primary_key: string[] }[] }>(tables);
  expect(body.tables.map(({ name, primary_key }) => [name, ...primary_key])).toEqual(
    Object.entries(TABLES).map(([name, [, ...key]]) => [name, ...key]),
  );
});

test.each(firstByDay(3, ['artist', 'employee', 'invoice', 'playlist_track'] as const))(
  'returns all rows of %s page by page, in the order of the key',
  async (table) => {
    const [count, ...key] = TABLES[table];
    const rows: Record<string, unknown>[] = [];
    for (let hasMore = true; hasMore; ) {
      const { body } = await api.get<RowPage>(`${rowsOf(table)}?limit=${PAGE}&offset=${rows.length}`);
      rows.push(...body.rows);
      hasMore = body.has_more;
    }
    expect(rows).toHaveLength(count);
    const [first] = rows;
    const texts = (row: Record<string, unknown>) =>
      Object.values(row).map((value) => (value === null ? null : String(value)));
    const columns = Object.keys(first ?? {}).map((name) => `${name}::text`);
    const truth = await query<Record<string, unknown>>(
      ownerUrl,
      `select ${columns.join(', ')} from ${table} order by ${key.map((name) => `${table}.${name}`).join(', ')}`,
    );
    expect(rows.map(texts)).toEqual(truth.map(texts));
  },
);

test('changes and deletes a row by a key of two columns', async () => {
  const primary_key = ['playlist_id', 'track_id'];
  const at = (id: unknown[]) => ({ primary_key, id });
  const moved = await api.call('PATCH', rowsOf('playlist_track'), {
    body: { ...at([1, 1]), column: 'track_id', value: 3503 },
  });
  expect(moved).toMatchObject({ status: 200, body: { row: { playlist_id: 1, track_id: 3503 } } });
  const taken = await api.call('PATCH', rowsOf('playlist_track'), {
    body: { ...at([1, 2]), column: 'track_id', value: 3503 },
  });
  expect(taken).toMatchObject({ status: 422, body: { sqlstate: '23505' } });
  const deleted = await api.call('DELETE', rowsOf('playlist_track'), {
    body: {
      primary_key,
      ids: [
        [1, 3503],
        [1, 1],
      ],
    },
  });
  expect(deleted.body).toEqual({ deleted: 1, missing: [[1, 1]] });
});

test('deletes nothing when one of the rows is referenced', async () => {
  const { status, body } = await api.call('DELETE', rowsOf('artist'), {
    body: { primary_key: 'artist_id', ids: [275, 2] },
  });
  expect([status, body.sqlstate]).toEqual([422, '23503']);
  expect(await query(ownerUrl, 'select count(*) from artist')).toEqual([{ count: '275' }]);
});
