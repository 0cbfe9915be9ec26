import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import { CLOSES } from '../../shared/protocol/closes.ts';
import { REFUSALS } from '../../shared/protocol/handshake.ts';
import { HOST_FAILURES } from '../../shared/protocol/host-failures.ts';
import { NOTIFICATIONS } from '../../shared/protocol/notifications.ts';
import { OPERATIONS } from '../../shared/protocol/operations.ts';
import { PROTOCOL_VERSION } from '../../shared/protocol/version.ts';

const page = readFileSync(join(import.meta.dirname, '../../docs/protocol.md'), 'utf8');
const rows = page.split('\n').filter((line) => line.startsWith('|'));
const rowWith = (...cells: string[]) => rows.find((row) => cells.every((cell) => row.includes(cell)));

describe('docs/protocol.md documents', () => {
  test('the version', () => {
    expect(page).toContain(`**Version ${PROTOCOL_VERSION}.**`);
  });

  test.each(Object.entries(OPERATIONS))('the operation %s', (method, { deadline }) => {
    expect(rowWith(`\`${method}\``, ` ${deadline / 1000} s |`)).toBeDefined();
  });

  test.each(Object.keys(NOTIFICATIONS))('the notification %s', (method) => {
    expect(rowWith(`| \`${method}\` |`)).toBeDefined();
  });

  test.each(Object.entries(HOST_FAILURES))('the failure %s', (code, failureClass) => {
    expect(rowWith(`| ${failureClass} |`, `\`${code}\``)).toBeDefined();
  });

  test.each(Object.keys(BOUNDS))('the bound %s', (name) => {
    expect(rowWith(`| \`${name}\` |`)).toBeDefined();
  });

  test.each(Object.entries(CLOSES))('the close reason %s', (reason, code) => {
    expect(rowWith(`| ${code} | \`${reason}\` |`)).toBeDefined();
  });

  test.each(Object.keys(REFUSALS))('the refusal %s', (reason) => {
    expect(rowWith(`| \`${reason}\` |`)).toBeDefined();
  });
});
