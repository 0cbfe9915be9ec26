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
  InvitationForm,
  MailForm,
  PasswordForm,
  ResetForm,
  ResetStartForm,
  SignUpForm,
} from './first-factor.tsx';

import { RecoverForm, RecoveryCodes, SecondFactorForm, SetUp } from './second-factor.tsx';

import { type Step, type StepName, TITLES } from './steps.ts';

/** The three stages of a sign-in, and the steps that belong to each. */
const STAGES: readonly (readonly StepName[])[] = [
  ['password', 'mail', 'sign_up', 'reset_start', 'invitation'],
  ['code', 'reset', 'set_up', 'second_factor', 'recover'],
  ['recovery_codes', 'done'],
];
const stageOf = (step: StepName) => STAGES.findIndex((steps) => steps.includes(step));

const BEGINNINGS = ['mail', 'sign_up', 'reset_start'] as const;

function firstStep({ way, invitation }: { way?: string; invitation?: string }): Step {
  if (invitation !== undefined) return { name: 'invitation' };
  return { name: BEGINNINGS.find((name) => name === way) ?? 'password' };
}

interface StepFormProps {
  step: Step;
  go: (step: Step) => void;
  invitation: string | undefined;
}

function StepForm({ step, go, invitation }: StepFormProps) {
  switch (step.name) {
    case 'password':
      return <PasswordForm go={go} />;
    case 'mail':
      return <MailForm go={go} />;
    case 'sign_up':
      return <SignUpForm go={go} />;
    case 'reset_start':
      return <ResetStartForm go={go} />;
    case 'invitation':
      return <InvitationForm go={go} invitation={invitation} />;
    case 'code':
      return <CodeForm step={step} go={go} />;
    case 'reset':
      return <ResetForm step={step} go={go} />;
    case 'set_up':
      return <SetUp preAuth={step.preAuth} go={go} />;
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

/** Only a path of this console; anything else would let a link lead a visitor elsewhere after the sign-in. */
const ownPath = (path: string | undefined) =>
  path?.startsWith('/') && !path.startsWith('//') && !path.includes('\\') ? path : '/';

export const Route = createFileRoute('/sign-in')({
  validateSearch: texts('return_to', 'sign_in_error', 'way', 'invitation'),
  component: SignInPage,
});

function SignInPage() {
  const search = Route.useSearch();
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const [step, setStep] = useState<Step>(() => firstStep(search));
  const [error, setError] = useState<unknown>(null);
  const returnTo = ownPath(search.return_to);

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
    if (session.state === 'signed_in') navigate({ to: returnTo, replace: true });
  }, [session, navigate, returnTo]);

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
        {search.sign_in_error !== undefined && step.name === 'password' && (
          <Note tone="bad">
            The identity provider did not sign you in ({search.sign_in_error}). Start again.
          </Note>
        )}
        {session.state === 'signed_out' && session.reason === 'ended' && step.name === 'password' && (
          <Note tone="warn">
            Your session has ended. Sign in again to continue; unsaved changes of rows are still here.
          </Note>
        )}
        {error !== null && <ErrorNote error={error} />}
        <StepForm step={step} go={setStep} invitation={search.invitation} />
        {step.name === 'password' && (
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
