import { beforeEach, expect, test } from 'vitest';
import { CloneTurns } from '../../../agent/cloning/clone-turns.ts';

let turns: CloneTurns;
let begun: string[];
beforeEach(() => {
  turns = new CloneTurns('reflink');
  begun = [];
});

/** @returns ends the turn once it has begun */
const begin = (name: string, source = name, tenant = 'acme') =>
  turns.begin(source, tenant).then((end) => {
    begun.push(name);
    return end;
  });
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('clones of one source run one after another, in order of arrival', async () => {
  const first = begin('first', 'a');
  const second = begin('second', 'a');
  begin('third', 'a');
  await settled();
  expect(begun).toEqual(['first']);
  (await first)();
  await settled();
  expect(begun).toEqual(['first', 'second']);
  (await second)();
  await settled();
  expect(begun).toEqual(['first', 'second', 'third']);
});

test('clones that wait for one source hold up no other source', async () => {
  for (let n = 0; n < 20; n++) begin(`a${n}`, 'a');
  begin('b');
  await settled();
  expect(begun).toEqual(['a0', 'b']);
});

test('at most eleven run on a host, and the place of one goes to the next that may run', async () => {
  const running = Array.from({ length: 11 }, (_, n) => begin(String(n)));
  begin('waiting', '10');
  const other = begin('other');
  await settled();
  expect(begun).toHaveLength(11);
  (await running[0])?.();
  await settled();
  expect(begun.slice(11)).toEqual(['other']);
  (await running[10])?.();
  await settled();
  expect(begun.slice(11)).toEqual(['other', 'waiting']);
  (await other)();
});

test('on a host that copies, a tenant has four places, and the last three go to tenants that have none', async () => {
  turns = new CloneTurns('copy');
  const all = ['a', 'b', 'c', 'd', 'e', 'f'].flatMap((tenant) =>
    Array.from({ length: 5 }, (_, n) => begin(`${tenant}${n}`, `${tenant}${n}`, tenant)),
  );
  await settled();
  expect(begun.toSorted()).toEqual(['a0', 'a1', 'a2', 'a3', 'b0', 'b1', 'b2', 'b3', 'c0', 'd0', 'e0']);
  (await all[0])?.();
  await settled();
  expect(begun.slice(11)).toEqual(['f0']);
});

test('the tenant with the fewest is next', async () => {
  turns = new CloneTurns('reflink');
  const running = Array.from({ length: 11 }, (_, n) => begin(`a${n}`, `a${n}`, 'a'));
  begin('a11', 'a11', 'a');
  begin('b0', 'b0', 'b');
  await settled();
  (await running[0])?.();
  await settled();
  expect(begun.slice(11)).toEqual(['b0']);
});
