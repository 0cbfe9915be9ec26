import { expect, test } from 'vitest';
import { objectName } from '../../edge/object-name.ts';

const state = (name: string | undefined, stored: Record<string, string>) =>
  ({ id: { name }, storage: { kv: { get: (key: string) => stored[key] } } }) as unknown as DurableObjectState;

test.each([
  ['its name', state('present', { project_id: 'stored' }), 'present'],
  [
    'the name that the last release stored, under an alarm of that time',
    state(undefined, { project_id: 'stored' }),
    'stored',
  ],
  ['none', state(undefined, {}), ''],
])('an object has %s', (_, object, name) => {
  expect(objectName(object, 'project_id')).toBe(name);
});
