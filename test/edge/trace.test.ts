import { expect, test, vi } from 'vitest';
import { logEvent } from '../../edge/log.ts';
import { continueTrace, currentTraceparent, traced } from '../../edge/trace.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const GIVEN = `00-${TRACE}-00f067aa0ba902b7-01`;

test('the trace of the client continues with a span of the gateway', () => {
  const continued = continueTrace(GIVEN);
  expect(continued).toMatch(new RegExp(`^00-${TRACE}-[0-9a-f]{16}-01$`));
  expect(continued).not.toBe(GIVEN);
});

test.each([
  ['none', undefined],
  ['the zero trace', `00-${'0'.repeat(32)}-00f067aa0ba902b7-01`],
  ['the zero span', `00-${TRACE}-${'0'.repeat(16)}-01`],
  ['upper case', GIVEN.toUpperCase()],
  ['another text', `${GIVEN}\n{"event":"forged"}`],
])('a new trace begins: %s', (_, given) => {
  const begun = continueTrace(given);
  expect(begun).toMatch(/^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
  expect(begun).not.toContain(TRACE);
});

test('log lines have a level, and the trace of their work', async () => {
  const lines: Record<string, unknown>[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((line) => lines.push(JSON.parse(line)));
  await traced(GIVEN, async () => {
    await Promise.resolve();
    logEvent('request', { status: 500 });
    logEvent('job.attempt_failed', { job_id: '1' });
  });
  logEvent('request', { status: 429 });
  log.mockRestore();
  expect(lines).toEqual([
    { level: 'error', event: 'request', status: 500, trace_id: TRACE },
    { level: 'warning', event: 'job.attempt_failed', job_id: '1', trace_id: TRACE },
    { level: 'info', event: 'request', status: 429 },
  ]);
  expect(currentTraceparent()).toBeUndefined();
});
