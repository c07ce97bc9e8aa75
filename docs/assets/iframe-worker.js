// Search without a server. Browsers start no Worker from file://, so the search script runs in a hidden iframe instead.
// The name of this file matters: MkDocs Material's offline plugin loads a copy from the network unless one is named "iframe-worker".
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(one)));
      this.ready = this.load(url);
    }
    load(url) {
      const script = this.scope.document.createElement("script");
      script.src = url;
      const loaded = new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; });
      this.scope.document.body.append(script);
      return loaded;
    }
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.scope.frameElement.remove(); }
  };
}
