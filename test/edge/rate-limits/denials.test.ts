import { expect, test } from 'vitest';
import { Denials } from '../../../edge/rate-limits/limiter-client.ts';

const remembering = () => {
  const denials = new Denials<string>(2);
  denials.remember('a', 'refused', { calledAt: 1000, restMs: 60 });
  return denials;
};

test('a denial is cached for the rest of its window, counted from the call', () => {
  const denials = remembering();
  expect(denials.get('b', 1000)).toBeUndefined();
  expect(denials.get('a', 1059)).toEqual({ value: 'refused', until: 1060 });
  expect(denials.get('a', 1060)).toBeUndefined();
});

test('all denials are dropped when the clock is set back', () => {
  const denials = remembering();
  denials.get('another', 1050);
  expect(denials.get('a', 1049)).toBeUndefined();
  expect(denials.get('a', 1055)).toBeUndefined();
});

test('only the most recent denials are cached', () => {
  const denials = remembering();
  for (const key of ['b', 'c']) denials.remember(key, 'refused', { calledAt: 1000, restMs: 60 });
  expect(['a', 'b', 'c'].map((key) => denials.get(key, 1000) !== undefined)).toEqual([false, true, true]);
});
