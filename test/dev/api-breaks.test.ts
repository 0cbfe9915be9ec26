import { describe, expect, test } from 'vitest';
import { breaksBetween, type Description, type Operation, type Schema } from '../../dev/api-breaks.ts';

const text = { type: 'string' };

const event = (type: string, fields: Record<string, Schema>): Schema => ({
  type: 'object',
  properties: { type: { const: type }, ...fields },
});

const RELEASED: Record<string, Schema> = {
  Sent: {
    type: 'object',
    properties: {
      name: { ...text, maxLength: 60 },
      kind: { type: 'string', enum: ['a', 'b'] },
      old: { ...text, deprecated: true },
    },
    required: ['name'],
    additionalProperties: false,
  },
  Got: {
    type: 'object',
    properties: {
      id: text,
      size: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
      old: { ...text, deprecated: true },
      event: { anyOf: [event('made', { status: text }), event('gone', { at: text })] },
      children: { type: 'array', items: { $ref: '#/components/schemas/Got' } },
    },
    required: ['id', 'size'],
    additionalProperties: false,
  },
};

const describeThings = (schemas: Record<string, Schema>): Description => {
  const of = (name: string) => ({ 'application/json': { schema: { $ref: `#/components/schemas/${name}` } } });
  return {
    paths: {
      '/things': {
        post: {
          parameters: [{ name: 'wait', in: 'query', schema: { type: 'integer', maximum: 60 } }],
          requestBody: { content: of('Sent') },
          responses: { 200: { content: of('Got') }, 404: {} },
        },
      },
      '/old': { get: { deprecated: true } },
    },
    components: { schemas },
  };
};

const released = describeThings(RELEASED);

type Fields = Schema & Required<Pick<Schema, 'properties' | 'required'>>;

interface Present {
  sent: Fields;
  got: Fields;
  post: Operation;
  paths: NonNullable<Description['paths']>;
}

type Change = (present: Present) => unknown;

/** @param change of the released description, which is a copy */
function breaksAfter(change: Change): string[] {
  const present = structuredClone(released);
  const { paths = {} } = present;
  const { Sent, Got } = (present.components?.schemas ?? {}) as Record<'Sent' | 'Got', Fields>;
  change({ sent: Sent, got: Got, paths, post: paths['/things']?.post ?? {} });
  return breaksBetween(released, present);
}

const POST = 'POST /things';

describe('a break', () => {
  test.each<[string, Change, string]>([
    ['an operation', ({ paths }) => delete paths['/things'], `${POST} is gone`],
    ['a status', ({ post }) => delete post.responses?.[200], `${POST}: response 200 is gone`],
    ['a parameter', ({ post }) => post.parameters?.pop(), `${POST}: query parameter wait is gone`],
    [
      'a bound of a parameter',
      ({ post }) => {
        post.parameters = [{ name: 'wait', in: 'query', schema: { type: 'integer', maximum: 30 } }];
      },
      `${POST}: query parameter wait has maximum 30 instead of 60`,
    ],
    [
      'a required parameter',
      ({ post }) => post.parameters?.push({ name: 'who', in: 'query', required: true }),
      `${POST}: query parameter who is required`,
    ],
    [
      'a required body',
      ({ post }) => {
        post.requestBody = { ...post.requestBody, required: true };
      },
      `${POST}: a body is required`,
    ],
    ['a field of a request', ({ sent }) => delete sent.properties.kind, `${POST}: body.kind is gone`],
    ['a required field', ({ sent }) => sent.required.push('kind'), `${POST}: body.kind is required`],
    ['a value', ({ sent }) => sent.properties.kind?.enum?.pop(), `${POST}: body.kind is never "b"`],
    [
      'a shorter text',
      ({ sent }) => {
        sent.properties.name = { ...text, maxLength: 20 };
      },
      `${POST}: body.name has maxLength 20 instead of 60`,
    ],
    ['a field of a response', ({ got }) => delete got.properties.id, `${POST}: response 200.id is gone`],
    [
      'a field that can be absent',
      ({ got }) => got.required.shift(),
      `${POST}: response 200.id can be absent`,
    ],
    [
      'another type',
      ({ got }) => {
        got.properties.id = { type: 'integer' };
      },
      `${POST}: response 200.id was string, and is integer`,
    ],
    [
      'a field of an event',
      ({ got }) => got.properties.event?.anyOf?.splice(0, 1, event('made', {})),
      `${POST}: response 200.event.status is gone`,
    ],
    [
      'a value that can be null',
      ({ got }) => {
        got.properties.id = { anyOf: [text, { type: 'null' }] };
      },
      `${POST}: response 200.id was string, and is null`,
    ],
  ])('is %s that goes or changes', (_what, change, line) => {
    expect(breaksAfter(change)).toContain(line);
  });
});

describe('no break', () => {
  test.each<[string, Change]>([
    ['no change', () => {}],
    ['a deprecated operation that goes', ({ paths }) => delete paths['/old']],
    [
      'a deprecated field that goes',
      ({ sent, got }) => {
        delete sent.properties.old;
        delete got.properties.old;
      },
    ],
    [
      'a new operation',
      ({ paths }) => {
        paths['/new'] = { get: {} };
      },
    ],
    [
      'a new optional field',
      ({ sent, got }) => {
        sent.properties.more = text;
        got.properties.more = text;
      },
    ],
    ['a new type of event', ({ got }) => got.properties.event?.anyOf?.push(event('moved', { to: text }))],
    ['a new value that is accepted', ({ sent }) => sent.properties.kind?.enum?.push('c')],
    [
      'a value that is never null any more',
      ({ got }) => {
        got.properties.size = { type: 'integer' };
      },
    ],
    ['a field that becomes optional', ({ sent }) => sent.required.pop()],
  ])('is %s', (_what, change) => {
    expect(breaksAfter(change)).toEqual([]);
  });
});
