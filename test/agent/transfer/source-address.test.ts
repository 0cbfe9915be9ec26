import { describe, expect, test } from 'vitest';
import { readSourceUrl, resolveSource } from '../../../agent/transfer/source-address.ts';

const PASSWORD = 'hunter2-hunter2';
const urlOf = (rest: string) => `postgresql://app:${PASSWORD}@${rest}`;

/** The source of a URL, or null. No refusal contains the password. */
function read(url: string) {
  const reading = readSourceUrl(url);
  expect(JSON.stringify(reading.ok ? {} : reading.failure)).not.toContain(PASSWORD);
  return reading.ok ? reading.value : reading.failure.problem;
}

const OWN = '93.184.215.99';

const resolve = async (host: string, addresses: string[], allowed: string[] = []) => {
  const source = { host, port: 5432, user: 'app', password: PASSWORD, database: 'shop', mustVerify: false };
  const network = {
    lookUp: async () => addresses.map((address) => ({ address })),
    own: () => ['10.0.0.1', OWN],
  };
  const found = await resolveSource(
    { FOLLOW_PRIVATE_NETWORKS: allowed },
    source,
    { onlyPublicAddresses: true },
    network,
  );
  return found.ok ? found.value.address : found.failure.problem;
};

describe('the URL of a source', () => {
  test('has one host, a login and a database; the password is decoded', () => {
    expect(read('postgres://us%40er:p%3Aw%2F@db.example.com/my%20shop?sslmode=verify-full')).toEqual({
      host: 'db.example.com',
      port: 5432,
      user: 'us@er',
      password: 'p:w/',
      database: 'my shop',
      mustVerify: true,
    });
    expect(read(urlOf('[2600::1]:6543/shop?channel_binding=require'))).toMatchObject({
      host: '2600::1',
      port: 6543,
      mustVerify: false,
    });
  });

  test.each([
    ['not a URL', 'url'],
    [`mysql://app:${PASSWORD}@db.example.com/shop`, 'url'],
    [urlOf('db.example.com/'), 'url'],
    ['postgresql://app@db.example.com/shop', 'url'],
    [`postgresql://:${PASSWORD}@db.example.com/shop`, 'url'],
    [urlOf('%2Fvar%2Frun%2Fpostgresql/shop'), 'url'],
    [urlOf('[fe80::1%25eth0]/shop'), 'url'],
    [urlOf('one.example.com,10.0.0.1/shop'), 'url'],
    [urlOf('db.example.com/shop?host=10.0.0.1'), 'url'],
    [urlOf('db.example.com/shop?hostaddr=10.0.0.1'), 'url'],
    [urlOf('db.example.com/shop?service=internal'), 'url'],
    [urlOf('db.example.com/shop?sslrootcert=/etc/passwd'), 'url'],
    ['postgresql://app:%ZZ@db.example.com/shop', 'url'],
    ['postgresql://app:a%00b@db.example.com/shop', 'url'],
    [urlOf('db.example.com/shop?sslmode=disable'), 'tls'],
    [urlOf('db.example.com/shop?sslmode=prefer'), 'tls'],
    [urlOf('db.example.com/shop?sslmode=toString'), 'tls'],
  ])('%s is refused: %s', (url, problem) => expect(read(url)).toBe(problem));
});

describe('the address of a source', () => {
  test.each([
    '127.0.0.1',
    '127.8.9.10',
    '0.0.0.0',
    '10.1.2.3',
    '172.16.0.1',
    '172.31.255.255',
    '192.168.1.1',
    '169.254.169.254',
    '100.64.0.1',
    '198.18.0.1',
    '192.0.0.1',
    '224.0.0.1',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '::ffff:10.0.0.1',
    '::ffff:7f00:1',
    '::10.0.0.1',
    '64:ff9b::a00:1',
    '2002:a00:1::',
    'fd00::1',
    'fe80::1',
    'fec0::1',
    'ff02::1',
    '2001:db8::1',
  ])('%s is refused, also behind a public name and next to a public address', async (address) => {
    expect(await resolve('db.example.com', [address])).toBe('address');
    expect(await resolve('db.example.com', ['93.184.215.14', address])).toBe('address');
    expect(await resolve('db.example.com', [address, '2600::1'])).toBe('address');
  });

  test('a public one is taken as the resolver gave it, and one of an allowed network too', async () => {
    expect(await resolve('db.example.com', ['93.184.215.14', '2600::1'])).toBe('93.184.215.14');
    expect(await resolve('db.example.com', ['10.1.2.3'], ['10.0.0.0/8'])).toBe('10.1.2.3');
    expect(await resolve('db.example.com', ['::ffff:10.1.2.3'], ['10.0.0.0/8'])).toBe('::ffff:10.1.2.3');
    expect(await resolve('db.example.com', ['10.1.2.3'], ['10.0.0.0/16'])).toBe('address');
  });

  test('a name without one is refused', async () =>
    expect(await resolve('db.example.com', [])).toBe('address'));

  test('an address of this host is refused, although it is public', async () => {
    expect(await resolve('db.example.com', [OWN])).toBe('address');
    expect(await resolve('db.example.com', [OWN], [`${OWN}/32`])).toBe(OWN);
  });

  test('spellings that only a resolver reads are refused by what they resolve to', async () => {
    for (const host of ['0x7f.1', '2130706433', '0177.0.0.1', 'localhost', 'localhost.']) {
      const reading = readSourceUrl(urlOf(`${host}/shop`));
      if (!reading.ok) throw new Error(host);
      const found = await resolveSource({ FOLLOW_PRIVATE_NETWORKS: [] }, reading.value, {
        onlyPublicAddresses: true,
      });
      expect(found, host).toMatchObject({ ok: false, failure: { problem: 'address' } });
    }
  });
});
