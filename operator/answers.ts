import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { CommandError } from '../cli/exit-codes.ts';
import { askText, isAttended } from '../cli/terminal.ts';

/** What the operator decides. */
export interface Answers {
  name: string;
  address: string;
  mailFrom: string;
  owner: string;
  secretsFile: string;
}

interface Question {
  flag: string;
  text: string;
  /** What a person gets who presses Enter. */
  suggestion?: (answers: Partial<Answers>) => string;
  /** The answer in its stored form; null if it is none. */
  read: (text: string) => string | null;
  /** What an answer is. */
  form: string;
}

const MAILBOX = /^[^\s@<>]+@[^\s@<>]+\.[^\s@<>]+$/;
const HOST_NAME = /^(?=.{4,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]$/;

const matching = (pattern: RegExp) => (text: string) => (pattern.test(text) ? text : null);

const stateFolder = () => process.env.XDG_CONFIG_HOME || join(homedir(), '.config');

const QUESTIONS: { readonly [Name in keyof Answers]: Question } = {
  name: {
    flag: '--name',
    text: 'Name of the Worker and its database at Cloudflare',
    suggestion: () => 'branchgate',
    read: matching(/^[a-z0-9](?:[a-z0-9-]{0,52}[a-z0-9])?$/),
    form: 'lowercase letters, digits and hyphens, at most 54',
  },
  address: {
    flag: '--address',
    text: 'Address of the gateway, in a domain of your Cloudflare account',
    read: (text) => matching(HOST_NAME)(text.toLowerCase().replace(/^https:\/\/|\/$/g, '')),
    form: 'a host name, for instance gateway.example.com',
  },
  mailFrom: {
    flag: '--mail-from',
    text: 'Sender of its mails',
    suggestion: ({ name = '', address = '' }) =>
      `${name} <no-reply@${address.split('.').slice(-2).join('.')}>`,
    read: (text) => (MAILBOX.test(/^[^<>]*<([^<>]+)>$/.exec(text)?.[1] ?? text) ? text : null),
    form: 'an e-mail address, or `Name <address>`',
  },
  owner: {
    flag: '--owner',
    text: 'E-mail address of the first owner, who is invited',
    read: (text) => matching(MAILBOX)(text.toLowerCase()),
    form: 'an e-mail address',
  },
  secretsFile: {
    flag: '--secrets-file',
    text: 'File for your copy of the secrets',
    suggestion: ({ name = '' }) => join(stateFolder(), `branchgate/${name}.secrets`),
    read: (text) => (text === '' ? null : resolve(text.replace(/^~(?=\/)/, homedir()))),
    form: 'a path',
  },
};

const NAMES = Object.keys(QUESTIONS) as (keyof Answers)[];

/**
 * The answers of the flags, and of a person for the rest.
 * @param known answers of an earlier run, which are not asked again
 * @throws CommandError for an invalid one, and without a terminal for missing ones
 */
export async function completeAnswers(
  given: Readonly<Partial<Answers>>,
  known: Readonly<Partial<Answers>>,
): Promise<Answers> {
  const answers: Partial<Answers> = { ...known };
  for (const name of NAMES) {
    const text = given[name];
    if (text !== undefined) answers[name] = readAnswer(name, text);
  }
  const missing = NAMES.filter((name) => answers[name] === undefined);
  if (missing.length > 0 && !isAttended())
    throw new CommandError(
      'usage',
      `Without a terminal every answer is a flag. Missing: ${missing.map((name) => QUESTIONS[name].flag).join(', ')}.`,
    );
  for (const name of missing) {
    const { text, suggestion, read, form } = QUESTIONS[name];
    const answer = await askText(text, {
      ...(suggestion && { initialValue: suggestion(answers) }),
      validate: (value = '') => (read(value.trim()) === null ? `Give ${form}.` : undefined),
    });
    answers[name] = readAnswer(name, answer);
  }
  return answers as Answers;
}

function readAnswer(name: keyof Answers, text: string): string {
  const { flag, form, read } = QUESTIONS[name];
  const answer = read(text.trim());
  if (answer === null) throw new CommandError('usage', `${flag} ${text} is invalid. Give ${form}.`);
  return answer;
}
