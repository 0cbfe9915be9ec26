import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { AGENT_NODE_OPTIONS } from '../../dev/stack/programs.ts';

test('the local stack and the systemd unit run Node with the same options', () => {
  const unit = readFileSync(join(ROOT, 'agent/systemd/branchgate-agent.service'), 'utf8');
  const [, options] = /^ExecStart=.* node (.*) \S+\.mjs run$/m.exec(unit) ?? [];
  expect(options?.split(' ')).toEqual(AGENT_NODE_OPTIONS);
});
