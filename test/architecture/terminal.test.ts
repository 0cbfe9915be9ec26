import { expect, test } from 'vitest';
import { filesOf } from './rooms.ts';

/** Where text of a database, a gateway or a host can reach a person's terminal or the log of a build. */
const FOLDERS = ['cli', 'operator', 'action', 'agent', 'mcp', 'client', 'vitest'];
/** The writers, which escape control characters, and what they write to. */
const WRITERS: Record<string, readonly RegExp[]> = {
  'cli/output.ts': [
    /process\.stderr\.write\(printable\(/,
    /process\.stdout\.write\(printable\(/,
    // Lines whose values are escaped, and the sequences for bold.
    /process\.stdout\.write\(lines\.map/,
  ],
  'agent/control-tool/terminal.ts': [
    /process\.stderr\.write\(printable\(/,
    /process\.stdout\.write\(printable\(/,
    // A percentage.
    /stderr\.write\(`\\r\\x1b\[K/,
    /stderr\.write\('\\r\\x1b\[K'\)/,
  ],
  'action/log.ts': [/core\.(?:setFailed|info|warning)\(printable\(/],
};
const WRITES =
  /\b(?:stdout|stderr)\.write\(|\bconsole\.(?:log|error|warn|info|debug|table|trace)\(|\bcore\.\w+\(|\bwriteSync\(\s*[12]\b|import \{[^}]*\b(?:setFailed|warning|notice|error|info|debug)\b[^}]*\} from '@actions\/core'/g;

test('text of others reaches a terminal or a log by the writers alone, which escape it', () => {
  const others = FOLDERS.flatMap((folder) => filesOf(folder)).flatMap(({ path, text }) =>
    text.split('\n').flatMap((line, n) => {
      if (line.trimStart().startsWith('*') || line.trimStart().startsWith('//')) return [];
      const isAllowed = (WRITERS[path] ?? []).some((allowed) => allowed.test(line));
      return line.match(WRITES) && !isAllowed ? [`${path}:${n + 1}: ${line.trim()}`] : [];
    }),
  );
  expect(others).toEqual([]);
});
