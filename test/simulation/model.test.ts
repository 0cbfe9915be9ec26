import { describe, expect, test } from 'vitest';
import { Promised } from './model.ts';

const DONE = { done: true, doubtful: false };
const LOST = { done: false, doubtful: true };
const REFUSED = { done: false, doubtful: false };

/** Values written one after the other, with what became of each. */
function written(...writes: [string, typeof DONE][]): Promised<string | null> {
  const title = new Promised<string | null>(null);
  for (const [value, fate] of writes) {
    title.ask(value);
    title.learn(value, fate);
  }
  return title;
}

describe('what a value may be', () => {
  test.each([
    [
      'what was acknowledged last',
      [
        ['a', DONE],
        ['b', DONE],
      ],
      ['b'],
    ],
    [
      'what was there, or what nobody answered',
      [
        ['a', DONE],
        ['b', LOST],
      ],
      ['a', 'b'],
    ],
    [
      'what nobody answered may come late',
      [
        ['a', LOST],
        ['b', DONE],
      ],
      ['a', 'b'],
    ],
    [
      'never what was refused',
      [
        ['a', DONE],
        ['b', REFUSED],
      ],
      ['a'],
    ],
  ] as [string, [string, typeof DONE][], string[]][])('%s', (_, writes, possible) => {
    expect([...written(...writes).possible].sort()).toEqual(possible);
  });

  test('in a copy: what it was at the beginning, and all that was written meanwhile', () => {
    const title = written(['old', DONE], ['a', DONE]);
    title.ask('under way');
    const endCopy = title.beginCopy();
    title.learn('under way', DONE);
    title.ask('b');
    title.learn('b', DONE);
    expect([...endCopy().possible]).toEqual(['a', 'under way', 'b']);
    expect([...title.possible]).toEqual(['b']);
  });
});
