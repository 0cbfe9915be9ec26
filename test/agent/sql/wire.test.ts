import { describe, expect, test } from 'vitest';
import { SqlRefusal } from '../../../agent/sql/admit-client.ts';
import { messageOf, startupMessage, takeAnswer, takePassword, takeStartup } from '../../../agent/sql/wire.ts';

const PARAMETERS = { user: 'u_1_rw', database: 'db_shop_prod', application_name: 'ünï' };
const startup = (parameters: Record<string, string> = PARAMETERS) =>
  startupMessage(new Map(Object.entries(parameters)));

/** A startup message with this body. */
const withBody = (body: string, version = 196_608) => {
  const bytes = Buffer.concat([Buffer.alloc(8), Buffer.from(body)]);
  bytes.writeInt32BE(bytes.length, 0);
  bytes.writeInt32BE(version, 4);
  return bytes;
};

test('a startup message is read from any parts, and what follows it stays', () => {
  const whole = Buffer.concat([startup(), messageOf('p', 'secret\0'), messageOf('Q', 'select 1\0')]);
  for (let length = 0; length < startup().length; length += 1)
    expect(takeStartup(whole.subarray(0, length))).toBeNull();
  const taken = takeStartup(whole);
  expect(taken?.value).toMatchObject({ user: PARAMETERS.user, database: PARAMETERS.database });
  expect(Object.fromEntries(taken?.value.parameters ?? [])).toEqual(PARAMETERS);
  const rest = whole.subarray(taken?.length);
  for (let length = 0; length < 12; length += 1) expect(takePassword(rest.subarray(0, length))).toBeNull();
  const password = takePassword(rest);
  expect(password?.value).toBe('secret');
  expect(takeAnswer(rest.subarray(password?.length))?.value).toEqual({
    kind: 'Q',
    body: Buffer.from('select 1\0'),
  });
});

describe('another first message ends the connection', () => {
  const sslRequest = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]);
  const cancelRequest = Buffer.concat([Buffer.from([0, 0, 0, 16, 4, 210, 22, 46]), Buffer.alloc(8)]);
  const cases: Record<string, Buffer> = {
    'a request for TLS': sslRequest,
    'a request to cancel': cancelRequest,
    HTTP: Buffer.from('GET / HTTP/1.1\r\n\r\n'),
    'another version': withBody('user\0a\0\0', 196_610),
    'a length that is too large': Buffer.from([0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0]),
    'a length that is negative': Buffer.from([0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0]),
    'no zero at the end': withBody('user\0a'),
    'a name without a value': withBody('user\0\0'),
    'two logins': withBody('user\0a\0user\0b\0\0'),
    'more after the end': withBody('user\0a\0\0database\0b\0\0'),
    replication: startup({ ...PARAMETERS, replication: 'database' }),
    'an option of the protocol': startup({ ...PARAMETERS, '_pq_.any': '1' }),
  };
  test.each(Object.entries(cases))('%s', (_, bytes) => {
    expect(() => takeStartup(bytes)).toThrow(SqlRefusal);
  });
});

test('only one password, and nothing else, is taken for one', () => {
  for (const bytes of [
    messageOf('Q', 'select 1\0'),
    messageOf('p', 'no zero'),
    messageOf('p', 'two\0texts\0'),
    messageOf('p'),
    Buffer.from([0x70, 0x7f, 0xff, 0xff, 0xff]),
    Buffer.from([0x70, 0, 0, 0, 3]),
  ])
    expect(() => takePassword(bytes)).toThrow(SqlRefusal);
});
