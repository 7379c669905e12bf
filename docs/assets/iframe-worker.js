// A Worker for pages opened as files, for which browsers start none: its script runs in a hidden frame.
// Material's `offline` plugin loads such a script from the network, unless `extra.polyfills` has one of this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.script = new URL(url, document.baseURI).href;
      this.pending = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.start(), { once: true });
      document.body.append(this.frame);
    }

    start() {
      const { contentWindow: scope, contentDocument: page } = this.frame;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = page.createElement("script");
      script.src = this.script;
      script.addEventListener("load", () => {
        this.pending.forEach((data) => this.send(data));
        this.pending = null;
      });
      page.body.append(script);
    }

    postMessage(data) {
      if (this.pending) this.pending.push(data);
      else this.send(data);
    }

    send(data) {
      const scope = this.frame.contentWindow;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
