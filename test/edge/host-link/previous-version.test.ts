import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import {
  resultFromPreviousVersion,
  type Translations,
  toPreviousVersion,
  NOTIFICATIONS as translatedNotifications,
  OPERATIONS as translatedOperations,
} from '../../../edge/host-link/previous-version.ts';
import { NOTIFICATIONS } from '../../../shared/protocol/notifications.ts';
import { OPERATIONS } from '../../../shared/protocol/operations.ts';
import { PREVIOUS_VERSION } from '../../../shared/protocol/version.ts';

interface Released {
  version: number;
  operations: Record<string, { params: object; result: object }>;
  notifications: Record<string, { params: object }>;
}

/** The schemas of the last release, as `dev/link-schemas.ts` printed them there. */
const RELEASED: Released = JSON.parse(
  readFileSync(
    join(import.meta.dirname, `../../shared/protocol/released/version-${PREVIOUS_VERSION}.json`),
    'utf8',
  ),
);

const textOf = (schema: z.ZodType) => {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'input' });
  return JSON.stringify(rest);
};

/** Names whose released schemas differ from the present ones, or are missing. */
const changed = (
  present: Record<string, Record<string, z.ZodType>>,
  released: Record<string, Record<string, object>>,
) =>
  Object.entries(present)
    .filter(([name, schemas]) =>
      Object.entries(schemas).some(
        ([part, schema]) => JSON.stringify(released[name]?.[part]) !== textOf(schema),
      ),
    )
    .map(([name]) => name);

const operations = Object.fromEntries(
  Object.entries(OPERATIONS).map(([method, { params, result }]) => [method, { params, result }]),
);
const notifications = Object.fromEntries(
  Object.entries(NOTIFICATIONS).map(([method, { params }]) => [method, { params }]),
);

test('the kept schemas are those of the previous version', () => {
  expect(RELEASED.version).toBe(PREVIOUS_VERSION);
});

test('each operation and notification that has changed since is translated, and no other one', () => {
  expect(changed(operations, RELEASED.operations).sort()).toEqual(Object.keys(translatedOperations).sort());
  expect(changed(notifications, RELEASED.notifications).sort()).toEqual(
    Object.keys(translatedNotifications).sort(),
  );
});

test('no operation of the previous version is gone', () => {
  expect(Object.keys(RELEASED.operations).filter((method) => !(method in OPERATIONS))).toEqual([]);
});

describe('a translation', () => {
  const project = { project_id: crypto.randomUUID() };
  const ids = { ...project, snapshot_id: crypto.randomUUID() };
  const translations: Translations = {
    'snapshot.drop': null,
    'project.size': {
      params: (params) => (params.project_id === project.project_id ? { id: params.project_id } : null),
      result: (result) => ({ sizes: result.list }),
    },
  };

  test('replaces parameters and result, or says that the present version is needed', () => {
    expect(toPreviousVersion('snapshot.drop', ids, translations)).toBeNull();
    expect(toPreviousVersion('project.size', project, translations)).toEqual({ id: project.project_id });
    const other = { project_id: crypto.randomUUID() };
    expect(toPreviousVersion('project.size', other, translations)).toBeNull();
    expect(resultFromPreviousVersion('project.size', { list: [] }, project, translations)).toEqual({
      sizes: [],
    });
  });

  test('that is missing leaves both as they are', () => {
    expect(toPreviousVersion('host.inventory', {}, translations)).toEqual({});
    expect(resultFromPreviousVersion('host.inventory', { free_bytes: 1 }, {}, translations)).toEqual({
      free_bytes: 1,
    });
  });
});
