import { useQuery } from '@tanstack/react-query';
import { createFileRoute, useNavigate } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { Logo } from '../../components/icon.tsx';
import { texts } from '../../data/search.ts';
import { enterWithCookie, restoreSession, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';
import {
  CodeForm,
  CompanyForm,
  EmailForm,
  InvitationForm,
  MailForm,
  OwnerCodeForm,
  PasswordForm,
  ResetForm,
  ResetStartForm,
  SignUpForm,
} from './first-factor.tsx';
import { AskForFactor, RecoverForm, RecoveryCodes, SecondFactorForm } from './second-factor.tsx';
import { type Methods, type Step, type StepName, signIn, TITLES } from './steps.ts';

/** The three stages of a sign-in, and the steps that belong to each. */
const STAGES: readonly (readonly StepName[])[] = [
  ['email', 'password', 'company', 'owner_code', 'mail', 'sign_up', 'reset_start', 'invitation'],
  ['code', 'reset', 'set_up', 'second_factor', 'recover'],
  ['recovery_codes', 'done'],
];
const stageOf = (step: StepName) => STAGES.findIndex((steps) => steps.includes(step));

const BEGINNINGS = ['mail', 'sign_up', 'reset_start'] as const;

function firstStep({ way, invitation }: { way?: string; invitation?: string }): Step {
  if (invitation !== undefined) return { name: 'invitation' };
  return { name: BEGINNINGS.find((name) => name === way) ?? 'email' };
}

interface StepFormProps {
  step: Step;
  go: (step: Step) => void;
  invitation: string | undefined;
  ways: Methods | undefined;
  target: { returnTo: string; cli: string | undefined };
}

function StepForm({ step, go, invitation, ways, target }: StepFormProps) {
  switch (step.name) {
    case 'password':
      return <PasswordForm step={step} go={go} target={target} />;
    case 'email':
      return <EmailForm go={go} ways={ways} />;
    case 'company':
      return <CompanyForm step={step} go={go} target={target} />;
    case 'owner_code':
      return <OwnerCodeForm step={step} go={go} />;
    case 'mail':
      return <MailForm step={step} go={go} />;
    case 'sign_up':
      return <SignUpForm go={go} />;
    case 'reset_start':
      return <ResetStartForm step={step} go={go} />;
    case 'invitation':
      return <InvitationForm go={go} invitation={invitation} />;
    case 'code':
      return <CodeForm step={step} go={go} />;
    case 'reset':
      return <ResetForm step={step} go={go} />;
    case 'set_up':
      return <AskForFactor preAuth={step.preAuth} go={go} />;
    case 'second_factor':
      return <SecondFactorForm key={step.preAuth} step={step} go={go} />;
    case 'recover':
      return <RecoverForm step={step} go={go} />;
    case 'recovery_codes':
      return <RecoveryCodes codes={step.codes} go={go} />;
    case 'done':
      return <p role="status">One moment</p>;
  }
}

/** What a person can do about a sign-in that a company's provider did not complete. */
const SIGN_IN_ERRORS: Record<string, string> = {
  SSO_ADDRESS_REFUSED:
    'Your identity provider gave no verified e-mail address in a domain of your company. Ask an owner of your team which addresses it accepts.',
  SSO_DISABLED: 'Your company has disabled your access. Ask the people who manage its identity provider.',
  SSO_REQUIRED: 'Your company requires its own identity provider. Enter your e-mail address to find it.',
  SSO_MISCONFIGURED:
    'The identity provider of your company is not set up correctly. Ask an owner of your team to test it.',
  IDP_UNAVAILABLE: 'The identity provider is currently unavailable. Try again shortly.',
};

/** Only a path of this console; anything else would let a link lead a visitor elsewhere after the sign-in. */
const ownPath = (path: string | undefined) =>
  path?.startsWith('/') && !path.startsWith('//') && !path.includes('\\') ? path : '/';

export const Route = createFileRoute('/sign-in')({
  validateSearch: texts('return_to', 'sign_in_error', 'way', 'invitation', 'cli'),
  component: SignInPage,
});

function SignInPage() {
  const search = Route.useSearch();
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const [step, setStep] = useState<Step>(() => firstStep(search));
  const [error, setError] = useState<unknown>(null);
  const returnTo = ownPath(search.return_to);
  const { cli } = search;
  const ways = useQuery({ queryKey: ['sign-in-methods'], queryFn: () => signIn.methods() }).data;

  useEffect(() => {
    document.title = `${TITLES[step.name]} · ${TEXT.name}`;
  }, [step.name]);
  useEffect(() => {
    restoreSession().catch(setError);
  }, []);
  useEffect(() => {
    if (step.name === 'done') enterWithCookie().catch(setError);
  }, [step.name]);
  useEffect(() => {
    // A command line waits for the sign-in of this page, also if the page has a session.
    if (session.state === 'signed_in' && cli === undefined) navigate({ to: returnTo, replace: true });
  }, [session, navigate, returnTo, cli]);

  const stage = stageOf(step.name);
  return (
    <main className="sign-in">
      <div className="sign-in-card">
        <div className="brand">
          <Logo />
          <span>{TEXT.name}</span>
        </div>
        {stage > 0 && (
          <ol className="stages" aria-label="Steps of the sign-in">
            {['Identify', 'Confirm', 'Done'].map((label, index) => (
              <li
                key={label}
                {...(index === stage && { 'aria-current': 'step' as const })}
                data-done={index < stage}
              >
                {label}
              </li>
            ))}
          </ol>
        )}
        <h1>{TITLES[step.name]}</h1>
        {search.sign_in_error !== undefined && step.name === 'email' && (
          <Note tone="bad">
            {SIGN_IN_ERRORS[search.sign_in_error] ??
              `The identity provider did not sign you in (${search.sign_in_error}). Start again.`}
          </Note>
        )}
        {cli !== undefined && step.name === 'email' && (
          <p className="quiet">The command line on this machine will be signed in.</p>
        )}
        {session.state === 'signed_out' && session.reason === 'ended' && step.name === 'email' && (
          <Note tone="warn">
            Your session has ended. Sign in again to continue; unsaved changes of rows are still here.
          </Note>
        )}
        {error !== null && <ErrorNote error={error} />}
        <StepForm
          step={step}
          go={setStep}
          invitation={search.invitation}
          ways={ways}
          target={{ returnTo, cli }}
        />
        {step.name === 'email' && cli === undefined && ways?.methods.includes('idp') && (
          <>
            <p className="or">or</p>
            <a
              className="button wide"
              href={`/api/v1/auth/idp/login?${new URLSearchParams({ response: 'page', return_to: returnTo })}`}
            >
              Continue with your identity provider
            </a>
          </>
        )}
      </div>
      <p className="small quiet">
        For programs: <a href="/docs">the API reference</a>
      </p>
    </main>
  );
}
