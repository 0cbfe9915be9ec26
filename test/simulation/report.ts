import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ScheduleReport } from './run-schedule.ts';
import type { Failure, Summary } from './simulation.ts';

const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`;

/** One line per schedule and one per violation. */
export function progressText({ seed, violations, faults, operations, atRestMs, ms }: ScheduleReport): string {
  const outcome = violations.length === 0 ? 'ok' : 'FAILED';
  const rest = atRestMs === null ? 'never converged' : `converged after ${seconds(atRestMs)}`;
  const struck = faults.length === 0 ? 'no fault' : faults.join('; ');
  const line = `seed ${seed} ${outcome} ${seconds(ms)}, ${operations} operations, ${rest}: ${struck}`;
  return [line, ...violations.map((violation) => `  ${violation}`)].join('\n');
}

/** Describes a failure, how to reproduce it, and where its schedule is stored. */
export function failureText({ report, schedule, shrunk }: Failure, file: string): string {
  const form = schedule.standby ? ' --standby' : schedule.hosts > 1 ? ` --hosts ${schedule.hosts}` : '';
  const lines = [
    `seed ${report.seed} failed; reproduce: npm run simulate -- --seed ${report.seed} --schedules 1${form}`,
  ];
  if (shrunk) {
    const { operations, faults } = shrunk.report;
    lines.push(`  shrunk to ${operations} operations and these faults: ${faults.join('; ') || 'none'}`);
    lines.push(...shrunk.report.violations.map((violation) => `    ${violation}`));
  }
  return [...lines, `  stored; replay: npm run simulate -- --replay ${file}`].join('\n');
}

export function summaryText(summary: Summary): string {
  const { schedules, operations, moves, faults, leftOut, slowestRestMs, failures } = summary;
  const lines = [
    `${schedules} schedules in ${summary.seconds.toFixed(0)} s: ${operations} operations, ${summary.standingSnapshots} standing snapshots, ${summary.sparesTaken} spares taken, ${moves} moves, ${faults} faults, ` +
      `${failures.length} failures; slowest convergence ${seconds(slowestRestMs)}`,
  ];
  if (leftOut.length > 0)
    lines.push(`skipped, because this machine does not support it: ${leftOut.join(', ')}`);
  return lines.join('\n');
}

/** Stores the schedule of a failure, in its shrunk form if any. @returns the file */
export function saveFailure(folder: string, { report, schedule, shrunk }: Failure): string {
  mkdirSync(folder, { recursive: true });
  const form = schedule.standby ? '-standby' : schedule.hosts > 1 ? `-hosts-${schedule.hosts}` : '';
  const file = join(folder, `seed-${report.seed}${form}.json`);
  writeFileSync(file, `${JSON.stringify(shrunk?.schedule ?? schedule, null, 2)}\n`);
  return file;
}
