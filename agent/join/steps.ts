import { CERTIFICATE_STEP, RENEWAL_STEP } from './certificate-step.ts';
import type { Context } from './context.ts';
import { DOCTOR_STEP, ENROLMENT_STEP, GATEWAY_STEP, START_STEP, TABLES_STEP } from './gateway-steps.ts';
import type { Machine, Report } from './machine.ts';
import { FIREWALL_STEP, KERNEL_STEP, LOGS_STEP, VOLUME_STEP } from './machine-steps.ts';
import {
  BACKUP_STEP,
  PAST_STEP,
  RESTART_STEP,
  SERVER_STEPS,
  SERVERS_STEP,
  SETTINGS_STEP,
  takeBackServers,
} from './server-steps.ts';
import { COPY_AGAIN_STEP, COPY_STEP } from './standby-step.ts';
import type { Step } from './step.ts';

/**
 * In the order in which they are done. What can fail for a reason outside of this machine comes before what
 * changes it.
 */
export const STEPS: readonly Step[] = [
  GATEWAY_STEP,
  SERVERS_STEP,
  VOLUME_STEP,
  SETTINGS_STEP,
  ENROLMENT_STEP,
  CERTIFICATE_STEP,
  RENEWAL_STEP,
  LOGS_STEP,
  ...SERVER_STEPS,
  KERNEL_STEP,
  FIREWALL_STEP,
  COPY_STEP,
  RESTART_STEP,
  TABLES_STEP,
  BACKUP_STEP,
  PAST_STEP,
  DOCTOR_STEP,
  START_STEP,
];

/** Those of `rejoin`, on a standby or a former primary. */
export const REJOIN_STEPS: readonly Step[] = [COPY_AGAIN_STEP, RESTART_STEP, DOCTOR_STEP, START_STEP];

/** What one step did. */
export interface StepReport extends Report {
  step: string;
}

/** Does the steps in order. A failure ends it, after the report of what its step did. */
export async function applySteps(
  context: Context,
  steps: readonly Step[],
  onDone: (report: StepReport) => void,
): Promise<void> {
  for (const { name, apply } of steps) await reported(context.machine, name, () => apply(context), onDone);
}

/**
 * Takes back what `join` did: the agent first, then the files, then both servers with the operator's
 * configuration. Databases and roles stay.
 */
export async function takeBack(context: Context, onDone: (report: StepReport) => void): Promise<void> {
  const { machine, files } = context;
  const steps = [...STEPS].reverse();
  const takeBackSome = async (isLate: boolean) => {
    for (const { name, takeBack: act, isTakenBackLate = false } of steps)
      if (act && isTakenBackLate === isLate) await reported(machine, name, () => act(context), onDone);
  };
  await takeBackSome(false);
  await reported(machine, 'files', () => files.restoreAll(), onDone);
  await reported(machine, 'restart', () => takeBackServers(context), onDone);
  await takeBackSome(true);
  await reported(machine, 'record', () => files.forget(), onDone);
}

async function reported(
  machine: Machine,
  step: string,
  act: () => Promise<void>,
  onDone: (report: StepReport) => void,
): Promise<void> {
  machine.report = { changes: [], notes: [] };
  try {
    await act();
  } finally {
    onDone({ step, ...machine.report });
  }
}
