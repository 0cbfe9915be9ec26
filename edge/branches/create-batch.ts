import { type SagaContext, saga } from '../jobs/saga.ts';
import {
  activation,
  areActive,
  BUSY_WAIT_MS,
  type Creation,
  loadCreations,
  proofPassword,
  toActiveBranchResponse,
  undoCreation,
  verifiersOf,
} from './create-branch.ts';

type Batch = [Creation, ...Creation[]];

const identity = ({ job }: SagaContext) => ({ job_id: job.id, project_id: job.projectId });

const databaseOf = ({ branch }: Creation) => ({ branch_id: branch.id, database: branch.databaseName });

async function prepare(context: SagaContext, batch: Batch) {
  const withVerifiers = async (creation: Creation) => ({
    ...databaseOf(creation),
    verifiers: await verifiersOf(context, creation),
  });
  const branches = await Promise.all(batch.map(withVerifiers));
  await context.callHost('batch.prepare', { ...identity(context), branches, access: batch[0].access });
}

const clone = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.clone', {
    ...identity(context),
    branches: batch.map(databaseOf),
    source: batch[0].branch.sourceDatabase,
    busy_wait: BUSY_WAIT_MS,
  });

const publish = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.finalize', { ...identity(context), branches: batch.map(databaseOf) });

async function prove(context: SagaContext, batch: Batch) {
  const withPassword = async (creation: Creation) => ({
    ...databaseOf(creation),
    password: await proofPassword(context, creation),
  });
  const branches = await Promise.all(batch.map(withPassword));
  await context.callHost('batch.prove', { ...identity(context), branches });
}

/** Creates several branches with the same content, all or none, with the steps of a single creation. */
export const createBatchJob = saga<Batch>({
  steps: [
    [
      { name: 'prepare', run: prepare },
      { name: 'clone', run: clone },
    ],
    [{ name: 'publish', run: publish }],
    [{ name: 'prove', run: prove }],
  ],
  load: async (context) => (await loadCreations(context)) as Batch | null,
  complete: activation,
  completed: areActive,
  response: (batch, now) => ({
    status: 201,
    body: { branches: batch.map((creation) => toActiveBranchResponse(creation, now)) },
  }),
  // The host builds the databases of a batch under the ids of their branches, because they have one job.
  undo: undoCreation((_jobId, branchId) => branchId),
});
