import { expect, test } from 'vitest';
import { SqlRefusal } from '../../../agent/sql/admit-client.ts';
import { ROOM, SocketRoom } from '../../../agent/sql/socket-room.ts';

const { handshakes, begun, open } = ROOM;
/** A network for each number. */
const networkOf = (n: number) => `10.0.${n >> 8}.${n & 255}/32`;
const repeat = <T>(count: number, make: (n: number) => T) => Array.from({ length: count }, (_, n) => make(n));

test('handshakes are bounded by network and host, and each that ends makes room', () => {
  const room = new SocketRoom();
  const own = repeat(handshakes.ofNetwork, () => room.beginHandshake('10.1.0.1/32', 0));
  expect(own.every(Boolean)).toBe(true);
  expect(room.beginHandshake('10.1.0.1/32', 0)).toBeNull();
  repeat(handshakes.ofHost - handshakes.ofNetwork, (n) => room.beginHandshake(networkOf(n), 0));
  expect(room.beginHandshake('10.2.0.1/32', 0)).toBeNull();
  own[0]?.();
  // Ending it again makes no more room.
  own[0]?.();
  expect(room.beginHandshake('10.2.0.1/32', 0)).not.toBeNull();
  expect(room.beginHandshake('10.2.0.2/32', 0)).toBeNull();
});

test('a network begins a burst, and then a bounded number each second', () => {
  const room = new SocketRoom();
  const begin = (now: number) => {
    const end = room.beginHandshake('10.1.0.1/32', now);
    end?.();
    return end !== null;
  };
  expect(repeat(2 * begun.burst, () => begin(0)).filter(Boolean)).toHaveLength(begun.burst);
  expect(repeat(2 * begun.perSecond, () => begin(1_000)).filter(Boolean)).toHaveLength(begun.perSecond);
  expect(repeat(2 * begun.burst, () => begin(60_000)).filter(Boolean)).toHaveLength(begun.burst);
});

test('open sockets are bounded by branch, tenant and host', () => {
  const room = new SocketRoom();
  const ofBranch = repeat(open.ofBranch, () => room.open('one', 'a'));
  expect(() => room.open('one', 'a')).toThrow(SqlRefusal);
  repeat(open.ofTenant - open.ofBranch, () => room.open('one', 'b'));
  expect(() => room.open('one', 'c')).toThrow(/this tenant/);
  ofBranch[0]?.();
  ofBranch[0]?.();
  room.open('one', 'c');
  expect(() => room.open('one', 'd')).toThrow(/this tenant/);
  repeat(open.ofHost - open.ofTenant, (n) => room.open(`tenant ${n}`, `branch ${n}`));
  expect(() => room.open('last', 'last')).toThrow(/this host/);
});
