import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { commandsBelow, createProgram, wordsOf } from '../../cli/program.ts';

const ROOT = join(import.meta.dirname, '../..');

/** The command of each operation of the API. */
const COMMANDS: Record<string, string> = {
  changeRows: 'query',
  createApiKey: 'key create',
  createBranch: 'branch create',
  createBranches: 'branch create',
  createNetworkRule: 'rule add',
  createProject: 'project create',
  createSnapshot: 'snapshot create',
  createTrust: 'trust github',
  deleteApiKey: 'key revoke',
  deleteBranch: 'branch delete',
  deleteNetworkRule: 'rule remove',
  deleteProject: 'project delete',
  deleteRows: 'query',
  deleteSnapshot: 'snapshot delete',
  deleteTrust: 'trust remove',
  describeTable: 'table get',
  diffBranch: 'branch diff',
  exchangeCliCode: 'login',
  finishRehearsal: 'rehearse',
  getCredentials: 'connection-string',
  getJob: 'job watch',
  getMe: 'whoami',
  getMetricsSummary: 'metrics',
  getProject: 'project get',
  getRehearsal: 'rehearse',
  getUsage: 'usage',
  getVersion: 'doctor',
  isReady: 'doctor',
  listApiKeys: 'key list',
  listAuditEvents: 'audit list',
  listBranches: 'branch list',
  listChangedRows: 'branch diff',
  listHosts: 'host list',
  listJobs: 'job list',
  listNetworkRules: 'rule list',
  listProjectSnapshots: 'snapshot list',
  listProjects: 'project list',
  listRows: 'rows',
  listSnapshots: 'snapshot list',
  listTables: 'table list',
  listTrusts: 'trust list',
  logIn: 'login',
  lookUpBranch: 'branch get',
  registerHost: 'host add',
  removeHost: 'host remove',
  renewHostEnrolment: 'host set',
  renewLease: 'branch renew',
  renewTokens: 'whoami',
  resetBranch: 'branch reset',
  restoreBranch: 'branch restore',
  rotateCredentials: 'credentials rotate',
  runQuery: 'query',
  signOut: 'logout',
  skipSecondFactor: 'login',
  startCliSignIn: 'login',
  startRehearsal: 'rehearse',
  streamBranchMetrics: 'metrics',
  streamEvents: 'events',
  updateBranch: 'branch extend',
  updateHost: 'host drain',
  updateNetworkRule: 'rule extend',
  updateProject: 'project update',
  updateProjectQuota: 'project update',
  updateRow: 'query',
  verifySecondFactor: 'login',
};

/** Operations without a command, which `branchgate api` sends, by the reason. */
const WITHOUT: Record<string, readonly string[]> = {
  'people and webhooks are managed in the console': [
    'acceptInvitation',
    'changeMemberRole',
    'createInvitation',
    'createWebhook',
    'deleteWebhook',
    'listInvitations',
    'listMembers',
    'listProjectMembers',
    'listWebhookDeliveries',
    'listWebhooks',
    'removeMember',
    'revokeInvitation',
    'shareProject',
    'testWebhook',
    'unshareProject',
  ],
  'accounts, their second factors and their sessions are managed in the console': [
    'changePassword',
    'endAllSessions',
    'endSession',
    'listSessions',
    'mailSecondFactorCode',
    'recoverSecondFactor',
    'replaceRecoveryCodes',
    'resetPassword',
    'setUpSecondFactor',
    'signUp',
    'startMagicLink',
    'startPasswordReset',
    'verifyMagicLink',
    'verifySecondFactorSetup',
  ],
  'for pages': ['completeProviderSignIn', 'renewPageSession', 'startProviderSignIn'],
  'for CI services': ['exchangeToken'],
  'for diagrams and monitoring': [
    'getMetricOfBranches',
    'getMetrics',
    'isAlive',
    'readPlatformMetrics',
    'streamProjectMetrics',
  ],
  '`branch get` looks up a branch by its name or ID': ['getBranch'],
  'rare, and for operators': ['createTenant', 'getHost', 'setTenantCaps', 'updateProjectCaps'],
  'for agents of hosts': ['enrolHost', 'openLink', 'setDnsChallenge'],
  'the description itself': ['getDescription', 'readDescription'],
};

test('each operation of the API has a command, or a reason for none', () => {
  const types = readFileSync(join(ROOT, 'client/api.ts'), 'utf8');
  const operations = new Set([...types.matchAll(/: operations\["(\w+)"\]/g)].map(([, name]) => name));
  const decided = [...Object.keys(COMMANDS), ...Object.values(WITHOUT).flat()];
  expect(decided.toSorted()).toEqual([...operations].toSorted());
  const words = commandsBelow(createProgram('1.2.3')).map((command) => wordsOf(command).join(' '));
  expect(Object.values(COMMANDS).filter((command) => !words.includes(command))).toEqual([]);
});
