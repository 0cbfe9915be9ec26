import { z } from 'zod';
import { MEMBER_ROLES } from '../../shared/protocol/standby.ts';
import type { Context } from './context.ts';
import { POOLER_UNIT } from './find-servers.ts';
import { runTool } from './gateway-steps.ts';
import { lastLine, StepFailure } from './machine.ts';
import { AGENT_UNIT, type Step } from './step.ts';

const Check = z.object({ role: z.enum(MEMBER_ROLES), needed: z.boolean() });

/** @throws StepFailure when the gateway does not say */
async function check(context: Context): Promise<z.output<typeof Check>> {
  const ran = await runTool(context, ['--json', 'copy-primary', '--check']);
  if (ran.code !== 0) throw new StepFailure('unreachable', lastLine(ran));
  return Check.parse(JSON.parse(ran.stdout));
}

/** A kill leaves servers that do not start before the copy is complete. */
async function copy(context: Context): Promise<void> {
  const { machine, servers } = context;
  for (const unit of [AGENT_UNIT, POOLER_UNIT, servers.postgres.unit])
    await machine.run(`stopped ${unit}`, 'systemctl', ['stop', unit]);
  await machine.change("copied the primary's data", async () => {
    // It takes hours with a large primary.
    const ran = await runTool(context, ['copy-primary'], { within: 0 });
    if (ran.code !== 0)
      throw new StepFailure(
        ran.code === 3 ? 'refused' : 'failed',
        lastLine(ran).replace(/^branchgate-agent: /, ''),
      );
  });
}

/** Only a host that the gateway has as a standby copies its primary. */
async function copyIfStandby(context: Context): Promise<void> {
  const { machine } = context;
  if (machine.isDryRun) return;
  const { role, needed } = await check(context);
  if (role !== 'primary')
    machine.note(`this host is ${role === 'standby' ? 'a standby' : 'fenced: run rejoin'}`);
  if (needed) await copy(context);
}

/** Also a former primary, whose changes after the promotion are lost by it. */
async function copyAgain(context: Context): Promise<void> {
  const { role } = await check(context);
  if (role === 'primary')
    throw new StepFailure('refused', 'this host is the primary, so there is nothing to copy');
  await copy(context);
}

export const COPY_STEP: Step = {
  name: 'copy',
  what: "on a standby, replace PostgreSQL's data by a copy of the primary's",
  apply: copyIfStandby,
};

export const COPY_AGAIN_STEP: Step = { ...COPY_STEP, apply: copyAgain };
