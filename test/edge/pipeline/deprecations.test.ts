import { Hono } from 'hono';
import { expect, test } from 'vitest';
import { app } from '../../../edge/app.ts';
import { descriptionOf } from '../../../edge/documentation/describe.ts';
import { operationsOf } from '../../../edge/documentation/openapi.ts';
import { announce, DEPRECATIONS } from '../../../edge/pipeline/deprecations.ts';

const OLD = { field: null, since: '2026-11-25', sunset: '2027-05-25', instead: 'something new' };
const OLDER = { ...OLD, field: 'thing.size', since: '2026-10-01', sunset: '2027-06-01' };

test('each response of what is deprecated says so, and when the first part of it goes', async () => {
  const planted = new Hono()
    .use('/old', announce([OLD, OLDER]))
    .get('/old', (c) => c.json({}))
    .get('/new', (c) => c.json({}))
    .post('/old', () => {
      throw new Error('planted');
    })
    .onError((_error, c) => c.json({}, 500));
  for (const method of ['GET', 'POST']) {
    const { headers, status } = await planted.request('/old', { method });
    expect(status).toBe(method === 'GET' ? 200 : 500);
    // The forms of RFC 9745 section 2.1 and RFC 8594 section 3.
    expect(headers.get('Deprecation')).toBe('@1790812800');
    expect(headers.get('Sunset')).toBe('Tue, 25 May 2027 00:00:00 GMT');
  }
  expect((await planted.request('/new')).headers.get('Sunset')).toBeNull();
});

/** Names of deprecated fields anywhere below. */
function deprecatedFields(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return [];
  const properties = 'properties' in value ? Object.entries(value.properties as object) : [];
  return [
    ...properties.filter(([, schema]) => schema.deprecated === true).map(([name]) => name),
    ...Object.values(value).flatMap(deprecatedFields),
  ];
}

test('the description and the table of deprecations agree', () => {
  const description = descriptionOf(app);
  const operations = operationsOf(description);
  for (const [id, entries = []] of Object.entries(DEPRECATIONS)) {
    expect(operations.map((operation) => operation.id)).toContain(id);
    for (const { since, sunset } of entries) expect(sunset > since, id).toBe(true);
  }
  const fields = Object.values(DEPRECATIONS).flatMap((entries = []) => entries.map(({ field }) => field));
  const marked = operations.filter(({ deprecated }) => deprecated).map(({ id }) => id);
  const whole = Object.keys(DEPRECATIONS).filter((id) =>
    DEPRECATIONS[id]?.some(({ field }) => field === null),
  );
  expect(marked.toSorted()).toEqual(whole.toSorted());
  const named = fields.flatMap((field) => (field === null ? [] : [field.split('.').at(-1)]));
  expect([...new Set(deprecatedFields(description))].toSorted()).toEqual([...new Set(named)].toSorted());
});
