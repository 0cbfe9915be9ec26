import { expect, test } from 'vitest';
import { verdictOf } from '../../cli/commands/bisect.ts';

test('an exit code of a check means what it means for git bisect run', () => {
  const meaning = (code: number) => {
    try {
      return verdictOf(code, 't\n');
    } catch (error) {
      return String(error);
    }
  };
  const codes = Array.from({ length: 256 }, (_, code) => code);
  expect(codes.filter((code) => meaning(code) === 'good')).toEqual([0]);
  expect(codes.filter((code) => meaning(code) === 'skip')).toEqual([125]);
  expect(codes.filter((code) => meaning(code) === 'bad')).toEqual(
    codes.filter((code) => code >= 1 && code <= 127 && code !== 125),
  );
  for (const code of codes.slice(128)) expect(meaning(code)).toContain(`has ended with exit code ${code}`);
});

test('a check that prints only the false of psql is bad, and its exit code comes first', () => {
  expect(verdictOf(0, 'f\n')).toBe('bad');
  expect(verdictOf(0, 'f\nf\n')).toBe('good');
  expect(verdictOf(0, '')).toBe('good');
  expect(verdictOf(125, 'f\n')).toBe('skip');
  expect(() => verdictOf(130, 'f\n')).toThrow('exit code 130');
});
