import { describe, expect, test } from 'vitest';
import { readList } from '../../../edge/access/named-networks.ts';
import { isInNetwork } from '../../../shared/cidr.ts';
import { RANGES_OF_LIST } from '../../../shared/named-networks.ts';

/** Networks of 16 addresses that do not touch each other. @param apart how many addresses from one to the next */
const scattered = (count: number, apart: number) =>
  Array.from({ length: count }, (_, n) => {
    const start = 20 * 2 ** 24 + n * apart;
    return `${[24, 16, 8, 0].map((bits) => Math.floor(start / 2 ** bits) % 256).join('.')}/28`;
  });

const TEN = Array.from({ length: 10 }, (_, n) => `104.${16 + 2 * n}.0.0/16`);

describe('a list', () => {
  test('is the union of its networks, of both families', () => {
    const list = readList('cloudflare', [
      ...TEN,
      '104.17.0.0/16',
      '104.16.128.0/17',
      '2606:4700::/32',
      '2606:4701::/32',
    ]);
    expect(list).toEqual(['104.16.0.0/15', ...TEN.slice(1), '2606:4700::/31']);
    expect(readList('cloudflare', [...TEN.slice(0, 9), '1.0.0.0/24', '1.0.2.0/24', '1.0.1.0/24'])).toContain(
      '1.0.0.0/23',
    );
  });

  test.each([
    'not a network',
    '<html>',
    '10.0.0.0/8',
    '127.0.0.1',
    '192.168.0.0/16',
    '::1',
    'fd00::/8',
    '0.0.0.0/0',
    '64.0.0.0/2',
    '2000::/3',
    '104.16.0.1/16',
    '',
  ])('has nothing of the entry %j', (entry) => {
    expect(readList('cloudflare', [...TEN, entry])).toEqual(TEN);
  });

  test('that is too short or too long is refused', () => {
    expect(() => readList('cloudflare', TEN.slice(1))).toThrow('has 9 networks, and needs 10');
    expect(() => readList('cloudflare', scattered(101, 64))).toThrow('has 101 networks, and may have 100');
    // One network of 16 addresses in each /20.
    expect(() => readList('github-actions', scattered(1_501, 2 ** 13))).toThrow('may have 1500');
  });

  test('of GitHub is rounded until it is short enough, and admits all of it', () => {
    const { most } = RANGES_OF_LIST['github-actions'];
    expect(readList('github-actions', scattered(most, 64))).toEqual(scattered(most, 64));
    const networks = scattered(6_000, 512);
    const list = readList('github-actions', networks);
    expect(list.length).toBeLessThanOrEqual(most);
    const starts = networks.map((network) => network.split('/')[0] ?? '');
    for (const start of [starts[0], starts[2_999], starts[5_999]])
      expect(list.some((range) => isInNetwork(start ?? '', range))).toBe(true);
    expect(list.some((range) => isInNetwork('21.0.0.1', range))).toBe(false);
  });
});
