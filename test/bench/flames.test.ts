import { expect, test } from 'vitest';
import { folded, readPerf } from './flames.ts';
import { renderFlames } from './plot.ts';

const PERF = `   41 
\t    7f10 SearchCatCache
\t    7f00 [unknown]
\t    6f00 exec_simple_query
\t    5f00 PostgresMain
\t    4f00 main

   41 
\tffffffff81 __x64_sys_sendto
\t    6f10 exec_simple_query
\t    5f00 PostgresMain

`;

test('samples of the kernel become a flame from the query on', () => {
  const root = folded('PostgreSQL', readPerf(PERF));
  expect(root).toEqual({
    name: 'PostgreSQL',
    ms: 0.5,
    callees: [
      {
        name: 'exec_simple_query',
        ms: 0.5,
        callees: [
          { name: 'SearchCatCache', ms: 0.25, callees: [] },
          { name: '__x64_sys_sendto', ms: 0.25, callees: [] },
        ],
      },
    ],
  });
});

test('flames have one scale, and a frame says its time', () => {
  const short = { name: 'agent', ms: 1, callees: [{ name: 'a<b', ms: 0.5, callees: [] }] };
  const svg = renderFlames('Flames', { 'A page': [{ name: 'workerd', ms: 4, callees: [] }, short] });
  const widths = [...svg.matchAll(/<rect [^>]*width="([\d.]+)"/g)].map(([, width]) => Number(width));
  expect(widths.map((width) => width / (widths[0] ?? 0))).toEqual([1, 0.25, 0.125]);
  expect(svg).toContain('<title>a&lt;b: 0.50 ms</title>');
});
