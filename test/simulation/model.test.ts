import { describe, expect, test } from 'vitest';
import { Promised } from './model.ts';

const DONE = { done: true, doubtful: false };
const LOST = { done: false, doubtful: true };
const REFUSED = { done: false, doubtful: false };

/** Values written one after the other, with the outcome of each. */
function written(...writes: [string, typeof DONE][]): Promised<string | null> {
  const title = new Promised<string | null>(null);
  for (const [value, fate] of writes) {
    title.ask(value);
    title.learn(value, fate);
  }
  return title;
}

describe('possible values', () => {
  test.each([
    [
      'the value acknowledged last',
      [
        ['a', DONE],
        ['b', DONE],
      ],
      ['b'],
    ],
    [
      'the stored value, or one whose write got no response',
      [
        ['a', DONE],
        ['b', LOST],
      ],
      ['a', 'b'],
    ],
    [
      'a write without a response may arrive late',
      [
        ['a', LOST],
        ['b', DONE],
      ],
      ['a', 'b'],
    ],
    [
      'never a refused value',
      [
        ['a', DONE],
        ['b', REFUSED],
      ],
      ['a'],
    ],
  ] as [string, [string, typeof DONE][], string[]][])('%s', (_, writes, possible) => {
    expect([...written(...writes).possible].sort()).toEqual(possible);
  });

  test('in a copy: the value at its beginning, and all values written meanwhile', () => {
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
