import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { invalidValue } from '../../../edge/pipeline/invalid-value.ts';
import { messageOf, NAMED_OPERATIONS } from '../../../edge/pipeline/messages.ts';
import { FAILURES, type FailureCode } from '../../../shared/failures.ts';
import { DESCRIPTION } from '../../support/contract.ts';

interface Described {
  operationId: string;
  'x-scope'?: string;
  parameters?: { name: string }[];
  requestBody?: object;
  responses: Record<string, object>;
}

const schemas = DESCRIPTION.components?.schemas ?? {};

/** Every name of a field in a part of the description, through its references. */
function fieldsIn(value: unknown, seen = new Set<string>()): Set<string> {
  const found = new Set<string>();
  const visit = (part: unknown): void => {
    if (typeof part !== 'object' || part === null) return;
    for (const [key, inner] of Object.entries(part)) {
      if (key === '$ref' && typeof inner === 'string') {
        const name = inner.slice(inner.lastIndexOf('/') + 1);
        if (!seen.has(name)) {
          seen.add(name);
          visit(schemas[name]);
        }
      } else if (key === 'properties') for (const field of Object.keys(inner as object)) found.add(field);
      visit(inner);
    }
  };
  visit(value);
  return found;
}

const operations = Object.values(DESCRIPTION.paths ?? {}).flatMap((item) =>
  Object.entries(item as Record<string, Described>)
    .filter(([, operation]) => operation?.operationId)
    .map(([method, operation]) => {
      const codes = Object.values(operation.responses).flatMap((response) =>
        '$ref' in response ? String(response.$ref).split('/').at(-1)?.split('.') : [],
      ) as FailureCode[];
      const successes = Object.entries(operation.responses).filter(([status]) => status.startsWith('2'));
      const asked = fieldsIn(operation.requestBody);
      for (const { name } of operation.parameters ?? []) asked.add(name);
      return {
        id: operation.operationId,
        isRead: method === 'get' || operation['x-scope'] === 'read',
        codes,
        asked,
        success: successes,
      };
    }),
);
type Operation = (typeof operations)[number];

/** What a sentence is about, and the operations that it fits. */
const ABOUT: readonly (readonly [RegExp, (operation: Operation) => boolean])[] = [
  [/took effect|nothing was (?:changed|made)/i, ({ isRead }) => !isRead],
  [/\bas `?confirm`?/, ({ asked }) => asked.has('confirm')],
  [/never deleted|to delete it/i, ({ id }) => id === 'deleteBranch'],
  [/to reset it|is reset to/i, ({ id }) => id === 'resetBranch'],
  [/smaller storage quota/, ({ asked }) => asked.has('storage_quota_gib')],
  [/Choose another (?:name|ID)|shorter name/, ({ id }) => /^(?:create|restore|register|update)/.test(id)],
  [/app key/, ({ asked }) => asked.has('app_key')],
  [/source branch|Choose an active branch/, ({ id }) => /^(?:create|restore|reset)/.test(id)],
  [/\bcompare/, ({ id }) => /^(?:diff|listChanged|changeRows|checkMasking|previewReset)/.test(id)],
  [/Queries/, ({ id }) => id === 'runQuery'],
  [/rehearsal/i, ({ id }) => /Rehearsal/.test(id)],
  [/\bimport\b/, ({ id }) => /Import|Source/.test(id)],
  [/The move/, ({ id }) => /Move|moveProject/.test(id)],
  [/invite|invitation/i, ({ id }) => /Invitation|createTenant/.test(id)],
  [/another way to sign in/, ({ id }) => /^(?:signUp|startMagicLink|mailSecondFactorCode)$/.test(id)],
];

/** Fields of what the API shows, which a message of any operation may name. */
const SHOWN = fieldsIn(operations.map(({ success }) => success));

test('the table of messages names operations that can fail so', () => {
  const unknown = NAMED_OPERATIONS.filter(
    ([code, id]) => !operations.some((operation) => operation.id === id && operation.codes.includes(code)),
  );
  expect(unknown).toEqual([]);
});

test('no message of an operation is about another one', () => {
  const wrong = operations.flatMap((operation) =>
    operation.codes.flatMap((code) => {
      const message = messageOf(code, operation);
      return ABOUT.filter(([about, fits]) => about.test(message) && !fits(operation)).map(
        ([about]) => `${operation.id} ${code}: ${about.source}: ${message}`,
      );
    }),
  );
  expect(wrong).toEqual([]);
});

test('a message names only fields that its operation has', () => {
  const wrong = operations.flatMap((operation) =>
    operation.codes.flatMap((code) => {
      const message = messageOf(code, operation);
      const ofFailure = fieldsIn(schemas[code]);
      const quoted = [...message.matchAll(/`([a-z_]+)(?:=\w+)?`/g)].map(([, name = '']) => name);
      const written = [...message.matchAll(/(?<![/{\w.])[a-z]+(?:_[a-z]+)+(?![\w}])/g)].map(([name]) => name);
      return [...quoted, ...written]
        .filter((name) => name !== 'max')
        .filter((name) => ![operation.asked, SHOWN, ofFailure].some((has) => has.has(name)))
        .map((name) => `${operation.id} ${code}: ${name}`);
    }),
  );
  expect(wrong).toEqual([]);
});

test('every message says what is wrong in sentences, and names no symbol of a schema', () => {
  for (const { message } of Object.values(FAILURES)) {
    expect(message).toMatch(/^(?:[A-Z]|main ).*[.}]$/);
    expect(message).not.toMatch(/[<>]=|\bexpected (?:string|number)|undefined/);
  }
});

describe('an invalid value', () => {
  const Body = z.strictObject({
    ttl_seconds: z.int().min(60).max(31_536_000).optional(),
    branch_name: z.string().min(3).max(48).optional(),
    allow: z.array(z.string()).max(2).optional(),
    quota_gib: z.number().max(5).optional(),
    attempts: z.union([z.int().min(10), z.literal('max')]).optional(),
    role: z.enum(['owner', 'viewer']).optional(),
    id: z.uuid().optional(),
    own: z.string().regex(/^a$/, 'only the letter a').optional(),
  });

  test.each<[object, string]>([
    [{ ttl_seconds: 5 }, 'Must be at least 60 seconds (1 minute).'],
    [{ ttl_seconds: 31_536_001 }, 'Must be at most 31536000 seconds (365 days).'],
    [{ ttl_seconds: 'x' }, 'Must be a number.'],
    [{ branch_name: 'a' }, 'Must have at least 3 characters.'],
    [{ allow: ['a', 'b', 'c'] }, 'Must have at most 2 entries.'],
    [{ quota_gib: 6 }, 'Must be at most 5 GiB.'],
    [{ attempts: 'many' }, 'Must be a number or max.'],
    [{ role: 'king' }, 'Must be owner or viewer.'],
    [{ id: '7' }, 'Must be a UUID.'],
    [{ own: 'b' }, 'only the letter a'],
  ])('%j: %s', (body, message) => {
    expect(invalidValue).toBeTypeOf('function');
    expect(Body.safeParse(body).error?.issues.map((issue) => issue.message)).toEqual([message]);
  });

  test('that is missing is required, with its forms', () => {
    const Required = z.strictObject({
      to: z.union([z.literal('parent'), z.literal('time'), z.uuid()]),
      role: z.enum(['owner', 'viewer']),
      name: z.string(),
    });
    expect(Required.safeParse({}).error?.issues.map(({ message }) => message)).toEqual([
      'Is required: parent or time.',
      'Is required: owner or viewer.',
      'Is required.',
    ]);
  });
});
