import { expect, test } from 'vitest';
import { Denials } from '../../../edge/rate-limits/denials.ts';

const remembering = () => {
  const denials = new Denials<string>(2);
  denials.remember('a', 'refused', { calledAt: 1000, restMs: 60 });
  return denials;
};

test('a refusal is remembered for the rest of its window, counted from the question', () => {
  const denials = remembering();
  expect(denials.get('b', 1000)).toBeUndefined();
  expect(denials.get('a', 1059)).toEqual({ value: 'refused', until: 1060 });
  expect(denials.get('a', 1060)).toBeUndefined();
});

test('after the clock went back nothing is remembered: the object is asked', () => {
  const denials = remembering();
  denials.get('another', 1050);
  expect(denials.get('a', 1049)).toBeUndefined();
  expect(denials.get('a', 1055)).toBeUndefined();
});

test('the most recent refusals alone are kept', () => {
  const denials = remembering();
  for (const key of ['b', 'c']) denials.remember(key, 'refused', { calledAt: 1000, restMs: 60 });
  expect(['a', 'b', 'c'].map((key) => denials.get(key, 1000) !== undefined)).toEqual([false, true, true]);
});
