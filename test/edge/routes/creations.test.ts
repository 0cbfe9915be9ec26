import { describe, expect, test } from 'vitest';
import { CreationHeaders } from '../../../edge/routes/creations.ts';

const waitOf = (prefer?: string) => CreationHeaders.parse({ prefer }).prefer / 1000;

describe('how long a client waits', () => {
  test.each([
    [undefined, 60],
    ['wait=0', 0],
    ['wait=10', 10],
    ['wait=60', 60],
    ['wait=61', 60],
    ['wait=1000', 60],
    ['wait=999999999', 60],
    ['WAIT=5', 5],
    ['respond-async, wait=7', 7],
    ['respond-async;wait=7', 7],
    ['wait=7, wait=8', 7],
  ])('%s: %i seconds', (prefer, seconds) => {
    expect(waitOf(prefer)).toBe(seconds);
  });

  test.each([
    '',
    'wait',
    'wait=',
    'wait=soon',
    'wait=-1',
    'wait=1.5',
    'wait=1e1',
    'await=3',
    'wait=9999999999',
  ])('%j is ignored', (prefer) => {
    expect(waitOf(prefer)).toBe(60);
  });
});
