import { Histogram, Registry } from 'prom-client';
import type { Method } from '../../shared/protocol/operations.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../servers/host-error.ts';

const OPERATION_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900];
const CLONE_SECONDS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60, 300];
const PAUSE_SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15];

/** What happened on this host since the agent started; in memory, for the metrics (`docs/monitoring`). */
export class Metrics {
  readonly registry = new Registry();
  readonly #operations = new Histogram({
    name: 'branchgate_operation_duration_seconds',
    help: 'Operations that the gateway called, by name and outcome',
    labelNames: ['operation', 'outcome'],
    buckets: OPERATION_SECONDS,
    registers: [this.registry],
  });
  readonly #clones = new Histogram({
    name: 'branchgate_clone_duration_seconds',
    help: 'CREATE DATABASE of a clone or a snapshot, by the method of the copy',
    labelNames: ['method'],
    buckets: CLONE_SECONDS,
    registers: [this.registry],
  });
  readonly #pauses = new Histogram({
    name: 'branchgate_pause_duration_seconds',
    help: 'Time for which the pooled clients of a source were held',
    buckets: PAUSE_SECONDS,
    registers: [this.registry],
  });

  /** Counts the operation when it ends. @returns the operation */
  countOperation<T>(operation: Method, run: Promise<T>): Promise<T> {
    const end = this.#operations.startTimer({ operation });
    run.then(
      () => end({ outcome: 'ok' }),
      (error) => end({ outcome: outcomeOf(error) }),
    );
    return run;
  }

  countClone(method: string, milliseconds: number): void {
    this.#clones.observe({ method }, milliseconds / 1000);
  }

  countPause(milliseconds: number): void {
    this.#pauses.observe(milliseconds / 1000);
  }
}

function outcomeOf(error: unknown): string {
  const failure = asHostError(error);
  return failure instanceof HostError ? failure.code : 'INTERNAL';
}
