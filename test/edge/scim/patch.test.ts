import { describe, expect, test } from 'vitest';
import {
  GROUP_SCHEMA,
  type ResourceSchema,
  readResource,
  USER_SCHEMA,
} from '../../../edge/scim/attributes.ts';
import { predicateOf, readFilter } from '../../../edge/scim/filter.ts';
import { applyPatch } from '../../../edge/scim/patch.ts';

const ENTERPRISE = 'urn:ietf:params:scim:schemas:extension:enterprise:2.0:User';
const CORE = 'urn:ietf:params:scim:schemas:core:2.0:User';

const USER = {
  id: 'u1',
  userName: 'ada@example.com',
  active: true,
  name: { givenName: 'Ada', familyName: 'Byron' },
  emails: [
    { value: 'ada@example.com', type: 'work', primary: true },
    { value: 'ada@home.example', type: 'home' },
  ],
};
const GROUP = { id: 'g1', displayName: 'admins', members: [{ value: 'one' }, { value: 'two' }] };

type Operation = { op: string; path?: string; value?: unknown };

function patched(schema: ResourceSchema, resource: Record<string, unknown>, ...Operations: Operation[]) {
  const before = structuredClone(resource);
  const outcome = applyPatch(schema, resource, { Operations } as never);
  expect(resource).toEqual(before);
  return outcome.ok ? outcome.value : outcome.failure.scimType;
}
const user = (...operations: Operation[]) => patched(USER_SCHEMA, USER, ...operations);
const group = (...operations: Operation[]) => patched(GROUP_SCHEMA, GROUP, ...operations);

describe('an operation on a user', () => {
  test.each<[name: string, Operation, changed: object]>([
    ['a path in another case', { op: 'Replace', path: 'Active', value: 'False' }, { active: false }],
    [
      'no path',
      { op: 'replace', value: { ACTIVE: false, title: 'Countess' } },
      { active: false, title: 'Countess' },
    ],
    ['the URN of the schema', { op: 'replace', path: `${CORE}:active`, value: false }, { active: false }],
    [
      'the URN of the schema within the value',
      { op: 'add', value: { [`${CORE}:userName`]: 'countess@example.com' } },
      { userName: 'countess@example.com' },
    ],
    [
      'an attribute of the extension',
      { op: 'add', path: `${ENTERPRISE}:department`, value: 'Engines' },
      { [ENTERPRISE]: { department: 'Engines' } },
    ],
    [
      'the whole extension',
      { op: 'add', path: ENTERPRISE, value: { Department: 'Engines', manager: 'm1' } },
      { [ENTERPRISE]: { department: 'Engines', manager: { value: 'm1' } } },
    ],
    [
      'the extension within the value',
      { op: 'add', value: { [`${ENTERPRISE}:manager`]: { value: 'm1' }, 'name.honorificPrefix': 'Lady' } },
      {
        [ENTERPRISE]: { manager: { value: 'm1' } },
        name: { ...USER.name, honorificPrefix: 'Lady' },
      },
    ],
    [
      'a complex value: the other parts stay',
      { op: 'replace', path: 'name', value: { familyName: 'Lovelace' } },
      { name: { givenName: 'Ada', familyName: 'Lovelace' } },
    ],
    ['a part of one', { op: 'remove', path: 'name.givenName' }, { name: { familyName: 'Byron' } }],
    ['null, which is no value', { op: 'replace', path: 'name', value: null }, { name: undefined }],
    [
      'a filter with a part',
      { op: 'replace', path: 'emails[Type eq "WORK"].value', value: 'a@example.com' },
      { emails: [{ value: 'a@example.com', type: 'work', primary: true }, USER.emails[1]] },
    ],
    [
      'a filter with a truth in a text',
      { op: 'replace', path: 'emails[primary eq "True"]', value: { value: 'a@example.com' } },
      { emails: [{ value: 'a@example.com' }, USER.emails[1]] },
    ],
    [
      'a filter that matches nothing, with a value to add',
      { op: 'add', path: 'phoneNumbers[type eq "mobile" and primary eq true].value', value: '1' },
      { phoneNumbers: [{ type: 'mobile', primary: true, value: '1' }] },
    ],
    [
      'a new primary value instead of the old one',
      { op: 'add', path: 'emails', value: [{ value: 'b@example.com', primary: true }] },
      {
        emails: [
          { ...USER.emails[0], primary: false },
          USER.emails[1],
          { value: 'b@example.com', primary: true },
        ],
      },
    ],
    [
      'a value that is there',
      { op: 'add', path: 'emails', value: { value: 'ada@home.example', type: 'home' } },
      {},
    ],
    ['a filter that matches nothing, to remove', { op: 'remove', path: 'emails[type eq "other"]' }, {}],
    ['one that was never there', { op: 'remove', path: 'title' }, {}],
    [
      'read-only ones within the value',
      { op: 'replace', value: { id: 'u2', schemas: [CORE], active: false } },
      { active: false },
    ],
  ])('with %s', (_, operation, changed) => {
    expect(user(operation)).toEqual({ ...USER, ...changed });
  });

  test.each<[name: string, refusal: string, Operation]>([
    [
      'a path of an attribute that does not exist',
      'invalidPath',
      { op: 'add', path: 'colour', value: 'red' },
    ],
    ['such a name within the value', 'invalidPath', { op: 'add', value: { colour: 'red' } }],
    ['a sub-attribute that does not exist', 'invalidPath', { op: 'add', path: 'name.colour', value: 'red' }],
    ['an index', 'invalidFilter', { op: 'replace', path: 'emails[0].value', value: 'x' }],
    [
      'a filter of a value that has no list',
      'invalidPath',
      { op: 'replace', path: 'name[givenName eq "Ada"]', value: {} },
    ],
    ['a part of a list', 'invalidPath', { op: 'replace', path: 'emails.value', value: 'x' }],
    ['an empty path', 'invalidPath', { op: 'replace', path: '', value: 'x' }],
    ['an unknown URN', 'invalidPath', { op: 'add', path: 'urn:x:active', value: true }],
    [
      'another schema',
      'invalidPath',
      { op: 'add', path: 'urn:ietf:params:scim:schemas:core:2.0:Group:members', value: 'x' },
    ],
    [
      'a filter that does not say which value to add',
      'invalidPath',
      { op: 'add', path: 'emails[not (type eq "work") and type ne "home"].value', value: 'x' },
    ],
    ['a filter that is not one', 'invalidFilter', { op: 'remove', path: 'emails[type]' }],
    [
      'a filter that matches nothing',
      'noTarget',
      { op: 'replace', path: 'emails[type eq "other"].value', value: 'x' },
    ],
    ['nothing to remove', 'noTarget', { op: 'remove' }],
    ['a value of another type', 'invalidValue', { op: 'replace', path: 'active', value: 'perhaps' }],
    ['a text as a complex value without one', 'invalidValue', { op: 'replace', path: 'name', value: 'Ada' }],
    ['a list as a text', 'invalidValue', { op: 'replace', path: 'title', value: ['a'] }],
    ['no value', 'invalidValue', { op: 'add', path: 'title' }],
    ['no value for a list', 'invalidValue', { op: 'add', path: 'emails' }],
    ['a value that is no object and no path', 'invalidValue', { op: 'add', value: 'active' }],
    ['none of the parts', 'invalidValue', { op: 'add', path: 'emails', value: [{ colour: 'red' }] }],
    ['a read-only attribute', 'mutability', { op: 'replace', path: 'ID', value: 'x' }],
    ['a required one to remove', 'mutability', { op: 'remove', path: 'userName' }],
    ['another verb', 'invalidSyntax', { op: 'copy', path: 'title', value: 'x' }],
  ])('with %s is %s', (_, refusal, operation) => {
    expect(user(operation)).toBe(refusal);
    expect(user({ op: 'replace', path: 'title', value: 'Countess' }, operation)).toBe(refusal);
  });

  const NAMES = ['__proto__', 'constructor', 'prototype', 'constructor.prototype', 'hasOwnProperty'];
  const PATHS = NAMES.flatMap((name) => [
    name,
    `${name}.0`,
    `emails.${name}.0`,
    `name.${name}.polluted`,
    `emails[value pr].${name}`,
    `${name}[value eq "x"].polluted`,
    `${ENTERPRISE}:${name}`,
    `${ENTERPRISE}:manager.${name}.polluted`,
  ]);
  test.each(PATHS)('writes nothing at %s', (path) => {
    const values = [{ polluted: true }, { value: 'x' }, 'x', [{ value: 'x' }]];
    for (const op of ['add', 'replace', 'remove'])
      for (const value of values) {
        expect(user({ op, path, value })).toMatch(/^invalid/);
        expect(user({ op, value: { [path]: value } })).toMatch(op === 'remove' ? 'noTarget' : /^invalid/);
      }
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
    expect([].at(0)).toBeUndefined();
    expect(Object.hasOwn(Array.prototype, '0')).toBe(false);
  });

  test('keeps the names of no value', () => {
    const value = JSON.parse(
      '{"givenName":"A","__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}',
    );
    expect(user({ op: 'add', path: 'name', value })).toEqual({
      ...USER,
      name: { givenName: 'A', familyName: 'Byron' },
    });
  });
});

describe('the members of a group', () => {
  const members = (...operations: Operation[]) => {
    const outcome = group(...operations);
    return typeof outcome === 'object'
      ? (outcome.members as { value: string }[]).map(({ value }) => value)
      : outcome;
  };
  test.each<[name: string, Operation, left: string[] | string]>([
    [
      'added',
      { op: 'Add', path: 'members', value: [{ value: 'three', type: 'User' }] },
      ['one', 'two', 'three'],
    ],
    ['added as a text', { op: 'add', path: 'members', value: 'three' }, ['one', 'two', 'three']],
    [
      'added twice',
      { op: 'add', path: 'members', value: [{ value: 'two', display: 'Two' }, { value: 'two' }] },
      ['one', 'two'],
    ],
    [
      'added by a filter',
      { op: 'add', path: 'members[value eq "three"]', value: { value: 'three' } },
      ['one', 'two', 'three'],
    ],
    [
      'removed as Microsoft Entra does it',
      { op: 'Remove', path: 'members', value: [{ $ref: null, value: 'one' }] },
      ['two'],
    ],
    ['removed by a text', { op: 'remove', path: 'Members', value: 'one' }, ['two']],
    ['removed by a filter', { op: 'remove', path: 'members[value eq "one"]' }, ['two']],
    [
      'removed who are not there',
      { op: 'remove', path: 'members', value: [{ value: 'nobody' }] },
      ['one', 'two'],
    ],
    [
      'removed who are not there, by a filter',
      { op: 'remove', path: 'members[value eq "nobody"]' },
      ['one', 'two'],
    ],
    ['removed by no value of a list', { op: 'remove', path: 'members', value: [] }, ['one', 'two']],
    ['removed altogether', { op: 'remove', path: 'members' }, []],
    ['replaced', { op: 'replace', path: 'members', value: [{ value: 'three' }] }, ['three']],
    [
      'removed in a form that says nothing',
      { op: 'remove', path: 'members', value: [{ id: 'one' }] },
      'invalidValue',
    ],
    ['removed by a number', { op: 'remove', path: 'members', value: 1 }, 'invalidValue'],
  ])('%s', (_, operation, left) => {
    expect(members(operation)).toEqual(left);
  });
  test('ids are compared with their case', () => {
    expect(members({ op: 'remove', path: 'members[value eq "ONE"]' })).toEqual(['one', 'two']);
  });

  test('of the largest group bear a thousand operations, but not conditions without end', () => {
    const many = { ...GROUP, members: Array.from({ length: 5000 }, (_, n) => ({ value: `${n}` })) };
    const one = Array.from({ length: 1000 }, (_, n) => ({ op: 'remove', path: `members[value eq "${n}"]` }));
    expect(patched(GROUP_SCHEMA, many, ...one)).toMatchObject({ members: { length: 4000 } });
    const conditions = Array.from({ length: 20 }, () => 'value eq "x"').join(' or ');
    const long = one.map(() => ({ op: 'remove', path: `members[${conditions}]` }));
    expect(patched(GROUP_SCHEMA, many, ...long)).toBe('tooMany');
  });
});

test('a body has the attributes of the schema only, whatever the case of their names', () => {
  const body = JSON.parse(
    `{"USERNAME":"a","Emails":[{"VALUE":"b","colour":1}],"id":"x","colour":"red","__proto__":{"polluted":1},
      "${ENTERPRISE}":{"Department":"c","constructor":{"prototype":1}}}`,
  );
  expect(readResource(USER_SCHEMA, body)).toEqual({
    ok: true,
    value: { userName: 'a', emails: [{ value: 'b' }], [ENTERPRISE]: { department: 'c' } },
  });
});

describe('a filter', () => {
  const resource = { ...USER, externalId: 'X1', meta: { created: '2026-01-01T00:00:00.000Z' } };
  test.each<[text: string, expected: boolean | string]>([
    ['userName eq "ADA@example.com"', true],
    ['USERNAME Eq "ada@example.com"', true],
    [`${CORE}:userName eq "ada@example.com"`, true],
    [`${CORE.toUpperCase()}:username eq "ada@example.com"`, true],
    [`${ENTERPRISE}:department pr`, false],
    ['externalId eq "x1"', false],
    ['externalId eq "X1"', true],
    ['active eq true', true],
    ['active eq "True"', true],
    ['active ne false', true],
    ['name.familyName sw "by"', true],
    ['emails co "HOME"', true],
    ['emails[type eq "work" and value co "example.com"]', true],
    ['emails[type eq "work"].value eq "ada@example.com"', true],
    ['emails[type eq "home"].value eq "ada@example.com"', false],
    ['not (active eq true)', false],
    ['title pr', false],
    ['title eq null', true],
    ['title ne "x"', true],
    ['title co "x"', false],
    ['active eq false and active eq true or userName pr', true],
    ['active eq false and (active eq true or userName pr)', false],
    ['meta.created gt "2025-12-31T00:00:00Z"', true],
    ['meta.created lt "2025-12-31T00:00:00Z"', false],
    ['userName eq "a\\"b"', false],
    ['nonsense', 'invalidFilter'],
    ['colour eq "red"', 'invalidFilter'],
    ['constructor.name pr', 'invalidFilter'],
    ['__proto__ pr', 'invalidFilter'],
    ['userName constructor "x"', 'invalidFilter'],
    ['userName eq "x" constructor userName pr', 'invalidFilter'],
    ['userName eq "x', 'invalidFilter'],
    ['userName eq {}', 'invalidFilter'],
    ['userName eq', 'invalidFilter'],
    ['(userName pr', 'invalidFilter'],
    ['userName pr)', 'invalidFilter'],
    ['emails[type pr', 'invalidFilter'],
    ['', 'invalidFilter'],
    [`${'('.repeat(400)}userName pr${')'.repeat(400)}`, 'invalidFilter'],
  ])('%s', (text, expected) => {
    const filter = readFilter(USER_SCHEMA, text);
    expect(filter.ok ? predicateOf(filter.value)(resource) : filter.failure.scimType).toBe(expected);
  });

  // A parser that tries both readings of each line break takes 2^60 steps for this text.
  test('without an end is refused at once', () => {
    for (const open of ['"', '"\\', '("', '['])
      expect(readFilter(USER_SCHEMA, `userName eq ${open}${'\n'.repeat(60)}`).ok).toBe(false);
  });
});
